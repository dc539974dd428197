//! Checks messages to be retried against NATS. Publishes nothing.

use crate::admin::doctor::{WITHOUT_LIMIT_PER_SUBJECT, doubled};
use crate::admin::{CauseNow, Command, Holds, Next, Obstacle, Refused, Refuses, capture, quoted};
use outbox::Failure;
use outbox::core::{Message, describe};
use outbox::nats::{JetStreamPublisher, Limit, Refusal};

use crate::output::{self, plain};

/// Returns a function that explains rejections of messages, or why the stream could not be read.
pub(super) async fn refuses(
    publisher: impl Future<Output = Result<JetStreamPublisher, Failure>>,
) -> Result<Refuses, String> {
    let publisher = publisher.await.map_err(|error| error.to_string())?;
    let outlook = publisher.outlook().await.map_err(|error| describe(&error))?;
    Ok(Box::new(move |message| {
        let refusal = publisher.foresee(&outlook, message)?;
        Some(refused(&refusal, message))
    }))
}

fn refused(refusal: &Refusal, message: &Message) -> Refused {
    let edit =
        |stream: &str, flags: &str| Command::new(format!("nats stream edit {} {flags}", quoted(stream)));
    let (obstacle, next) = match refusal {
        Refusal::NoStream { .. } => (
            Obstacle::NoStream,
            Next::and_advice(
                "outbox doctor",
                "it prints the command that creates the stream; a relay with `provision = true` also creates it",
            ),
        ),
        Refusal::NotCaptured { stream, subject } => (
            Obstacle::NotCaptured,
            Next::and_advice(
                Command::from("nats stream info").arg(stream),
                capture(stream, subject),
            ),
        ),
        Refusal::Sealed { .. } => (
            Obstacle::Sealed,
            Next::advice("a sealed stream stays as it is: publish to another stream"),
        ),
        Refusal::Unconfirmed { stream } => (Obstacle::Unconfirmed, edit(stream, "--ack").into()),
        Refusal::Full { stream, limit } => (Obstacle::Full, raised(|flags| edit(stream, flags), limit)),
        Refusal::TooLarge { .. } => (
            Obstacle::TooLarge,
            Next::advice("raise max_payload of the server and max_msg_size of the stream"),
        ),
        _ => (
            Obstacle::Unsendable,
            Command::from("outbox show").arg(message.id).into(),
        ),
    };
    Refused {
        obstacle,
        what: refusal.to_string(),
        next,
    }
}

fn raised(edit: impl Fn(&str) -> Command, limit: &Limit) -> Next {
    match limit {
        Limit::Messages(most) => edit(&doubled("max-msgs", *most)).into(),
        Limit::Bytes(most) => edit(&doubled("max-bytes", *most)).into(),
        Limit::MessagesOfSubject(_) => Next::and_advice(edit("--interactive"), WITHOUT_LIMIT_PER_SUBJECT),
    }
}

pub(super) fn line(cause: &CauseNow) -> String {
    let mut line = format!(
        "  {:>8}  cause {}: {}\n",
        cause.messages,
        cause.holds,
        plain(&cause.what)
    );
    if cause.holds != Holds::Gone {
        line.push_str(&output::next_lines(&cause.next, "            "));
    }
    line
}
