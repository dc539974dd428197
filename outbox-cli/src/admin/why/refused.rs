//! Findings for failed messages that the broker would reject again.

use outbox::core::{FoundMessage, StoredMessage};

use super::facts::Facts;
use super::finding::{NOTHING, finding, named, times};
use super::{Cause, Finding};
use crate::admin::recheck::{Obstacle, Refused, obstacle_of};
use crate::admin::verdict::State;

pub(super) fn refused(facts: &Facts, message: &FoundMessage) -> Option<Finding> {
    let failing = &facts.failing_row()?.stored;
    match &facts.refused {
        Some(Ok(refused)) => Some(for_good(&message.stored, failing, refused.as_ref()?)),
        Some(Err(silence)) => as_it_said(&format!(": {silence}"), &message.stored, failing),
        None => as_it_said("", &message.stored, failing),
    }
}

fn begin(stored: &StoredMessage, failing: &StoredMessage) -> String {
    match stored.id == failing.id {
        true => format!("{} has failed {}", named(stored), times(failing)),
        false => format!(
            "{} waits behind {} of its aggregate, which has failed {}",
            named(stored),
            named(failing),
            times(failing)
        ),
    }
}

fn for_good(stored: &StoredMessage, failing: &StoredMessage, refused: &Refused) -> Finding {
    let cause = cause_of(refused.obstacle);
    let what = format!("{}, and would again: {}", begin(stored, failing), refused.what);
    let next = refused
        .next
        .command
        .iter()
        .cloned()
        .chain(["outbox doctor".into()]);
    Finding {
        next: next.collect(),
        advice: refused.next.advice.clone(),
        ..finding(cause, state_of(cause), Some(failing), what, NOTHING)
    }
}

fn as_it_said(silence: &str, stored: &StoredMessage, failing: &StoredMessage) -> Option<Finding> {
    let error = failing.error.as_deref()?;
    let obstacle = obstacle_of(error)?;
    if !matches!(obstacle, Obstacle::NotCaptured | Obstacle::Full) {
        return None;
    }
    let cause = cause_of(obstacle);
    let what = format!(
        "{}: {error}. Whether this persists is unknown{silence}",
        begin(stored, failing)
    );
    Some(finding(
        cause,
        state_of(cause),
        Some(failing),
        what,
        ["outbox doctor"],
    ))
}

fn cause_of(obstacle: Obstacle) -> Cause {
    match obstacle {
        Obstacle::NoStream => Cause::NoStream,
        Obstacle::NotCaptured => Cause::NotCaptured,
        Obstacle::Full => Cause::Full,
        _ => Cause::Refused,
    }
}

/// `max_age` may free a full stream, so it is not stuck.
fn state_of(cause: Cause) -> State {
    match cause {
        Cause::Full => State::Degraded,
        _ => State::Stuck,
    }
}
