//! `outbox why`: why a message or the events of an aggregate do not arrive.

use std::fmt::Write as _;

use clap::Args;
use outbox::core::{Message, StreamSearch as _, describe};
use outbox_admin::{Cause, Explanation, Finding};

use super::arguments::{PlaceArguments, Subject, parse_subject};
use super::place::Place;
use super::text;
use crate::failure::{CommandError, Outcome};
use crate::output::{self, Column, Print, plain};

/// Arguments of `outbox why`.
#[derive(Debug, Clone, Args)]
#[non_exhaustive]
pub struct WhyCommand {
    /// The outbox.
    #[command(flatten)]
    pub place: PlaceArguments,
    /// A message by its id, or an aggregate such as `order/4711`.
    #[arg(value_name = "MESSAGE|TYPE/ID", value_parser = parse_subject)]
    pub subject: Subject,
}

impl WhyCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        let place = Place::open(&self.place).await?;
        let explanation = explain(&place, &self.subject).await?;
        output::one(self.place.output, &explanation)?;
        let is_absent = |finding: &Finding| finding.cause == Cause::NotRecorded;
        Ok(if explanation.findings.iter().all(is_absent) {
            Outcome::NothingMatched
        } else {
            explanation.state.into()
        })
    }
}

/// Why a message, or the events of an aggregate, do not arrive.
pub(super) async fn explain(place: &Place, subject: &Subject) -> Result<Explanation, CommandError> {
    // NATS is connected to only if a published message is to be looked for.
    let locate = async |message: &Message| {
        let publisher = place.publisher().await.map_err(|error| error.to_string())?;
        publisher.locate(message).await.map_err(|error| describe(&error))
    };
    match subject {
        Subject::Message(id) => {
            let why = outbox_admin::why_message(&place.store, locate, *id);
            place.ask(why).await
        }
        Subject::Aggregate(aggregate) => {
            let why = outbox_admin::why_aggregate(&place.store, locate, aggregate);
            place.ask(why).await
        }
    }
}

/// The finding that is to be mended first. There is always one.
fn first(explanation: &Explanation) -> Option<&Finding> {
    explanation.findings.first()
}

impl Print for Explanation {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("subject", |explanation| explanation.subject.clone()),
        Column::new("state", |explanation| explanation.state.as_str().to_owned()),
        Column::new("cause", |explanation| {
            let causes = explanation.findings.iter().map(|finding| finding.cause.as_str());
            causes.collect::<Vec<_>>().join(" ")
        }),
        Column::new("message", |explanation| {
            text::any(first(explanation).and_then(|finding| finding.message))
        }),
        Column::new("stream_sequence", |explanation| {
            text::any(first(explanation).and_then(|finding| finding.stream_sequence))
        }),
        Column::new("unpublished", |explanation| explanation.unpublished.to_string()),
        Column::new("what", |explanation| {
            text::any(first(explanation).map(|finding| finding.what.clone()))
        }),
        Column::new("next", |explanation| {
            text::any(first(explanation).map(|finding| finding.next.join("; ")))
        }),
    ];

    /// The cause, by which a script decides.
    fn name(&self) -> String {
        text::any(first(self).map(|finding| finding.cause.as_str()))
    }

    fn text(&self) -> Option<String> {
        let mut text = String::new();
        for finding in &self.findings {
            // Writing to a `String` does not fail.
            let _ = writeln!(text, "{}: {}", finding.cause.as_str(), plain(&finding.what));
            for next in &finding.next {
                let _ = writeln!(text, "  next: {}", plain(next));
            }
        }
        Some(text)
    }
}
