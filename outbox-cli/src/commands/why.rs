//! `outbox why`: why a message or the events of an aggregate do not arrive.

use std::fmt::Write as _;

use clap::Args;
use outbox::Failure;
use outbox::core::{Message, StreamSearch as _, describe};
use outbox::nats::JetStreamPublisher;
use outbox::nats::async_nats::Client;
use outbox_admin::{Cause, Explanation, Finding, Question, Readers};

use super::arguments::{PlaceArguments, Subject, parse_subject};
use super::place::Place;
use super::prove::rows_kept;
use super::{readers, recheck, text};
use crate::failure::{CommandError, Outcome};
use crate::hint;
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
        let explanation = explain(&place, Some(&self.place), &self.subject).await?;
        output::one(self.place.output, &explanation)?;
        let is_absent = |finding: &Finding| finding.cause == Cause::NotRecorded;
        Ok(if explanation.findings.iter().all(is_absent) {
            Outcome::NothingMatched
        } else {
            explanation.state.into()
        })
    }
}

/// Why a message, or the events of an aggregate, do not arrive. Inboxes are looked for in the databases of all outboxes that `arguments` name, or else in that of the
/// place.
pub(super) async fn explain(
    place: &Place,
    arguments: Option<&PlaceArguments>,
    subject: &Subject,
) -> Result<Explanation, CommandError> {
    let mut question = match subject {
        Subject::Message(id) => place.ask(Question::of_message(&place.store, *id)).await?,
        Subject::Aggregate(aggregate) => place.ask(Question::of_aggregate(&place.store, aggregate)).await?,
    };
    let looked = place.ask(question.look_for_holes(&place.store, rows_kept(None, place)));
    if let Err(CommandError::Configuration(error) | CommandError::Failed(error)) = looked.await {
        question.without_holes(error);
    }
    // NATS is connected to only if it has to be asked.
    if let Some(message) = question.failing() {
        let refuses = recheck::refuses(place).await;
        let refused = refuses.map(|refuses| refuses(message));
        question.refused(refused);
    }
    let Some(message) = question.published().cloned() else {
        return Ok(question.explain());
    };
    let stream = match stream(place).await {
        Ok(stream) => stream,
        Err(error) => {
            question.located(Err(error.to_string()));
            return Ok(question.explain());
        }
    };
    let found = tokio::time::timeout(place.timeout, stream.1.locate(&message)).await;
    question.located(match found {
        Ok(found) => found.map_err(|error| describe(&error)),
        Err(_) => Err(format!("no answer within {:?}", place.timeout)),
    });
    let on_stream = question.on_stream().map(|(_, stream_sequence)| stream_sequence);
    if let Some(stream_sequence) = on_stream {
        let message = (&message, stream_sequence);
        question.read_by(read_by(place, arguments, stream, message).await);
    }
    Ok(question.explain())
}

async fn stream(place: &Place) -> Result<(Client, JetStreamPublisher), Failure> {
    let client = place.client().await?;
    let stream = place.outbox.section.stream.event_stream()?;
    Ok((client.clone(), stream.publisher(client)))
}

async fn read_by(
    place: &Place,
    arguments: Option<&PlaceArguments>,
    (client, publisher): (Client, JetStreamPublisher),
    message: (&Message, u64),
) -> Result<Readers, String> {
    let Some(arguments) = arguments else {
        let places = std::slice::from_ref(place);
        return readers::of(place, places, (client, &publisher), message).await;
    };
    let everywhere = PlaceArguments {
        outbox: None,
        ..arguments.clone()
    };
    let places = Place::open_all(&everywhere).await.map_err(|error| match error {
        CommandError::Configuration(error) | CommandError::Failed(error) => error.to_string(),
    })?;
    readers::of(place, &places, (client, &publisher), message).await
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
            let next = first(explanation).map(|finding| finding.next.as_slice());
            let next = next.unwrap_or_default().iter().map(hint::called_here);
            next.collect::<Vec<_>>().join("; ")
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
                text.push_str(&hint::line(next, "  "));
            }
            if let Some(advice) = &finding.advice {
                text.push_str(&hint::advice(advice, "  "));
            }
        }
        for unseen in &self.unseen {
            let _ = writeln!(text, "not seen: {}", plain(unseen));
        }
        Some(text)
    }
}
