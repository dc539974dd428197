//! Checks causes of consumer dead letters.
//!
//! Invariant: reads only, and runs no handler, so handler failures stay [`Holds::Unknown`].

use std::collections::HashSet;

use outbox_inbox::{DeadLetterSelection, DeadLetters};
use sea_orm::DbErr;
use serde::Serialize;
use time::OffsetDateTime;
use uuid::Uuid;

use super::{LetterGroup, LetterRow, group_letters, read_letters};
use crate::next::Command;
use crate::recheck::{Holds, Obstacle};
use crate::words::counted;
use crate::{ConsumerRow, serial};

/// The largest groups are checked.
const GROUPS_MAX: usize = 10;

const SINCE_MAX: usize = 1_000;

/// State of a group's cause.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LetterCause {
    /// Whether the cause holds.
    pub holds: Holds,
    /// The cause.
    pub obstacle: Obstacle,
    /// The group.
    #[serde(flatten)]
    pub group: LetterGroup,
    /// Later dead letters with the same failure, at most 1,000.
    pub failed_since: u64,
    /// When the last of these failed.
    #[serde(serialize_with = "serial::time_if_any")]
    pub last_failed_at: Option<OffsetDateTime>,
    /// The result as a sentence.
    pub what: String,
    /// Next command, if one helps.
    pub next: Option<Command>,
}

/// Checks the causes of the 10 largest groups. `consumers` are their consumers, or why the
/// broker is unreadable.
///
/// # Errors
///
/// The error of the database.
pub async fn letter_causes(
    letters: &DeadLetters,
    selected: &[LetterRow],
    consumers: Result<&[ConsumerRow], &str>,
) -> Result<Vec<LetterCause>, DbErr> {
    let ids: HashSet<Uuid> = selected.iter().map(|letter| letter.id).collect();
    let mut causes = Vec::new();
    for group in group_letters(selected).into_iter().take(GROUPS_MAX) {
        let mut later = DeadLetterSelection::consumer(&group.consumer);
        later.from = Some(group.last_at);
        later.event_type.clone_from(&group.event_type);
        let (later, _) = read_letters(letters, &later, None, SINCE_MAX).await?;
        let is_same = |letter: &&LetterRow| {
            !ids.contains(&letter.id) && LetterGroup::fingerprint_of(letter) == group.fingerprint
        };
        let since: Vec<&LetterRow> = later.iter().filter(is_same).collect();
        let last_failed_at = since.iter().map(|letter| letter.dead_lettered_at).max();
        causes.push(judge(group, since.len() as u64, last_failed_at, consumers));
    }
    causes.sort_by_key(|cause| cause.holds);
    Ok(causes)
}

fn judge(
    group: LetterGroup,
    failed_since: u64,
    last_failed_at: Option<OffsetDateTime>,
    consumers: Result<&[ConsumerRow], &str>,
) -> LetterCause {
    let name = group.consumer.clone();
    let found = consumers.map(|rows| rows.iter().find(|row| row.consumer == name));
    let (holds, obstacle, what, next) = match found {
        Ok(
            None
            | Some(ConsumerRow {
                undelivered: None, ..
            }),
        ) => (
            Holds::Still,
            Obstacle::ConsumerAbsent,
            format!(
                "the broker has no consumer {name}: its inbox has never run, or the consumer was removed"
            ),
            Some(Command::from("outbox consumers list")),
        ),
        Ok(Some(ConsumerRow {
            paused: Some(reason), ..
        })) => (
            Holds::Still,
            Obstacle::ConsumerPaused,
            format!("they would wait: consumer {name} is paused: {reason}"),
            Some(Command::from("outbox consumers resume").arg(&name)),
        ),
        // A single observation: a process may pull a moment later.
        Ok(Some(ConsumerRow {
            is_receiving: Some(false),
            unacknowledged: None | Some(0),
            ..
        })) => (
            Holds::Unknown,
            Obstacle::ConsumerIdle,
            format!("one look saw no process of consumer {name} that asks for messages"),
            Some("outbox consumers list".into()),
        ),
        Ok(Some(_)) => (
            Holds::Unknown,
            Obstacle::Handler,
            handler(&group, failed_since),
            None,
        ),
        Err(error) => (
            Holds::Unknown,
            Obstacle::Handler,
            format!(
                "{}; nor whether the consumer runs: {error}",
                handler(&group, failed_since)
            ),
            Some("outbox doctor".into()),
        ),
    };
    LetterCause {
        holds,
        obstacle,
        group,
        failed_since,
        last_failed_at,
        what,
        next,
    }
}

fn handler(group: &LetterGroup, failed_since: u64) -> String {
    let since = match failed_since {
        0 => "none has failed like it since".to_owned(),
        count => counted(count, "has failed like it since", "have failed like it since"),
    };
    format!(
        "{since}; whether it would again shows only when it is tried: {}",
        group.error
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> LetterGroup {
        LetterGroup {
            fingerprint: "0000000000000000".parse().unwrap(),
            consumer: "billing".to_owned(),
            event_type: Some("order.placed".to_owned()),
            error: "no price for order <n>".to_owned(),
            dead_letters: 2,
            first_at: OffsetDateTime::UNIX_EPOCH,
            last_at: OffsetDateTime::UNIX_EPOCH,
        }
    }

    fn row() -> ConsumerRow {
        crate::consumers::dead("billing", 2)
    }

    #[test]
    fn a_consumer_that_cannot_try_is_told_and_a_handler_is_unknown() {
        let check = |change: fn(&mut ConsumerRow), holds, obstacle, words: &str| {
            let mut row = row();
            change(&mut row);
            let cause = judge(group(), 3, None, Ok(&[row]));
            assert_eq!((cause.holds, cause.obstacle), (holds, obstacle), "{cause:?}");
            assert!(cause.what.contains(words), "{cause:?}");
        };
        check(
            |_| {},
            Holds::Unknown,
            Obstacle::Handler,
            "3 have failed like it since",
        );
        check(
            |row| row.undelivered = None,
            Holds::Still,
            Obstacle::ConsumerAbsent,
            "no consumer billing",
        );
        check(
            |row| row.paused = Some("stocktaking".to_owned()),
            Holds::Still,
            Obstacle::ConsumerPaused,
            "stocktaking",
        );
        check(
            |row| row.is_receiving = Some(false),
            Holds::Unknown,
            Obstacle::ConsumerIdle,
            "no process",
        );
        let absent = judge(group(), 0, None, Ok(&[]));
        assert_eq!(absent.obstacle, Obstacle::ConsumerAbsent);
        let away = judge(group(), 0, None, Err("nats does not answer"));
        assert_eq!((away.holds, away.obstacle), (Holds::Unknown, Obstacle::Handler));
        assert!(away.what.contains("nats does not answer"), "{away:?}");
    }
}
