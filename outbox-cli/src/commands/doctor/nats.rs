//! Reads settings of the stream and its consumers for `outbox doctor`. No message is consumed.

use crate::admin::doctor::{
    Check, Diagnosis, Examination, MAX_BYTES, Wanted, inbox_memory, of_consumer, of_stream,
};
use crate::admin::{Command, Next, quoted};
use outbox::core::{FailureClass, PublishError, Publisher as _, describe};
use outbox::nats::async_nats::Client;
use outbox::nats::{JetStreamPublisher, StreamOutlook};

use super::denied::Denied;
use crate::commands::place::Place;
use crate::commands::stream::{self, WATCHED_MAX};

fn away(error: String) -> Diagnosis {
    Diagnosis::failed(
        Check::Nats,
        error,
        "a reachable server, and a valid login",
        Next::advice("correct NATS_URL or NATS_CREDS, or start the server"),
    )
}

pub(super) async fn look(place: &Place, wanted: &Wanted, as_relay: bool, found: &mut Examination) {
    let denied = Denied::default();
    if let Err(finding) = ask(place, wanted, &denied, found).await {
        found.findings.push(finding);
    }
    denied.tell(&place.outbox, as_relay, found);
}

async fn ask(
    place: &Place,
    wanted: &Wanted,
    denied: &Denied,
    found: &mut Examination,
) -> Result<(), Diagnosis> {
    let heard = denied.clone();
    let publisher = place.publisher_telling(move |event| heard.hear(event)).await;
    let publisher = publisher.map_err(|error| away(error.to_string()))?;
    let silent = |_| away(format!("no answer within {:?}", place.timeout));
    let checked = tokio::time::timeout(place.timeout, publisher.preflight()).await;
    match checked.map_err(silent)? {
        Err(error) if error.class() == FailureClass::Configuration => {
            found.made(Check::Nats..=Check::Nats);
            return Err(unfit_stream(place, &publisher, wanted, &error).await);
        }
        // Own rules of `outbox doctor` give more details than the preflight warnings.
        checked => checked.map_err(|error| away(describe(&error)))?,
    };
    let client = publisher.client().clone();
    let looked = look_closely(place, client, wanted, found);
    let looked = tokio::time::timeout(place.timeout + WATCHED_MAX, looked).await;
    looked.map_err(silent)?.map_err(away)
}

async fn unfit_stream(
    place: &Place,
    publisher: &JetStreamPublisher,
    wanted: &Wanted,
    error: &PublishError,
) -> Diagnosis {
    let section = &place.outbox.section.stream;
    let name = &section.name;
    let (seen, next) = match (section.event_stream(), publisher.outlook().await) {
        (Err(wrong), _) => (describe(error), Next::advice(describe(&wrong))),
        (Ok(mut stream), Ok(StreamOutlook { subjects: None, .. })) => {
            if section.max_bytes.is_none() {
                stream = stream.with_max_bytes(MAX_BYTES);
            }
            if section.max_age.is_none() {
                // `max_age` covers the retention of the outbox, which may be forever.
                let age = wanted.retention.map(|kept| stream.max_age().max(kept));
                stream = stream.with_max_age(age.unwrap_or_default());
            }
            let next = Next::and_advice(
                Command::new(stream.add_command()),
                "a relay with `provision = true` also creates the stream",
            );
            (format!("stream `{name}` does not exist"), next)
        }
        (
            Ok(stream),
            Ok(StreamOutlook {
                subjects: Some(subjects),
                ..
            }),
        ) if !stream.is_captured_by(&subjects) => {
            let captured = subjects.join(", ");
            let prefix = &section.prefix;
            let seen =
                format!("stream `{name}` captures {captured}, and messages are published on `{prefix}.>`");
            (seen, edit_command(&subjects, name, prefix))
        }
        _ => (
            describe(error),
            Command::from("nats stream info").arg(name).into(),
        ),
    };
    Diagnosis::failed(
        Check::Stream,
        seen,
        "a stream that captures the messages of this outbox",
        next,
    )
}

fn edit_command(subjects: &[String], stream: &str, prefix: &str) -> Next {
    let own = format!("{prefix}.>");
    let others = subjects
        .iter()
        .map(String::as_str)
        .filter(|subject| !subject.starts_with(&own[..own.len() - 1]));
    let all: Vec<&str> = others.chain([own.as_str()]).collect();
    let command = format!(
        "nats stream edit {} --subjects={}",
        quoted(stream),
        quoted(&all.join(","))
    );
    Next::and_advice(Command::new(command), "or correct `prefix` in the file")
}

async fn look_closely(
    place: &Place,
    client: Client,
    wanted: &Wanted,
    found: &mut Examination,
) -> Result<(), String> {
    let stream = stream::filled(place, client.clone()).await?;
    found.made(Check::Nats..=Check::NatsVersion);
    found.findings.extend(of_stream(&stream, wanted));
    let rows = stream::watched(place, client).await;
    let rows = rows.map_err(|error| error.to_string())?;
    found.made(Check::ConsumerBehind..=Check::ConsumerBehind);
    match stream::unseen(&rows) {
        None => found.made(Check::ConsumerPaused..=Check::ConsumerDeadLetters),
        Some(unseen) => found
            .unseen
            .push(format!("dead letters and pauses of consumers: {unseen}")),
    }
    let names = place.outbox.table_names().map_err(|error| describe(&error))?;
    let db = place.store.connection();
    let table = names.table(db.get_database_backend(), "inbox_messages");
    let mut unread = None;
    for row in &rows {
        let memory = inbox_memory(db, &table, &row.consumer).await;
        let memory = memory.unwrap_or_else(|error| {
            unread = Some(place.explain(&error));
            None
        });
        found.findings.extend(of_consumer(row, memory, &stream));
    }
    match unread {
        None => found.made(Check::InboxMemory..=Check::InboxMemory),
        Some(error) => found.unseen.push(format!("the retention of inboxes: {error}")),
    }
    Ok(())
}
