//! Reads settings of the stream and its consumers for `outbox doctor`. No message is consumed.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use outbox::core::{FailureClass, PublishError, Publisher as _, describe};
use outbox::nats::async_nats::jetstream::consumer;
use outbox::nats::async_nats::{Client, jetstream};
use outbox::nats::{JetStreamPublisher, StreamOutlook};
use outbox_admin::doctor::{
    Check, ConsumerFacts, Diagnosis, Examination, MAX_BYTES, Wanted, inbox_memory, of_consumer, of_stream,
};
use outbox_admin::{Command, ConsumerRow, Next, quoted};

use super::denied::Denied;
use crate::commands::place::Place;
use crate::commands::stream::{self, WATCHED_MAX};
use crate::failure::CommandError;

const OF_STREAM: [Check; 1] = [Check::ConsumerBehind];

const OF_TABLES: [Check; 3] = [
    Check::ConsumerPaused,
    Check::ConsumerDeadLetters,
    Check::InboxMemory,
];

pub(super) async fn look(
    place: &Place,
    wanted: &Wanted,
    as_relay: bool,
    found: &mut Examination,
) -> Result<(), CommandError> {
    let denied = Denied::default();
    ask(place, wanted, &denied, found).await?;
    denied.tell(&place.outbox, as_relay, found);
    Ok(())
}

async fn ask(
    place: &Place,
    wanted: &Wanted,
    denied: &Denied,
    found: &mut Examination,
) -> Result<(), CommandError> {
    let away = |error: String| {
        Diagnosis::failed(
            Check::Nats,
            error,
            "a reachable server, and a valid login",
            Next::advice("correct NATS_URL or NATS_CREDS, or start the server"),
        )
    };
    let unanswered = || away(format!("no answer within {:?}", place.timeout));
    let heard = denied.clone();
    let publisher = match place.publisher_telling(move |event| heard.hear(event)).await {
        Ok(publisher) => publisher,
        Err(error) => {
            found.findings.push(away(error.to_string()));
            return Ok(());
        }
    };
    match tokio::time::timeout(place.timeout, publisher.preflight()).await {
        // Own rules of `outbox doctor` give more details than these preflight warnings.
        Ok(Ok(_)) => {}
        Ok(Err(error)) if error.class() == FailureClass::Configuration => {
            found.made([Check::Nats]);
            found
                .findings
                .push(unfit_stream(place, &publisher, wanted, &error).await);
            return Ok(());
        }
        Ok(Err(error)) => {
            found.findings.push(away(describe(&error)));
            return Ok(());
        }
        Err(_) => {
            found.findings.push(unanswered());
            return Ok(());
        }
    }
    let client = publisher.client().clone();
    let bound = place.timeout + WATCHED_MAX;
    let looked = tokio::time::timeout(bound, look_closely(place, client, wanted, found)).await;
    match looked {
        Ok(Ok(())) => {}
        Ok(Err(error)) => found.findings.push(away(error)),
        Err(_) => found.findings.push(unanswered()),
    }
    Ok(())
}

/// Finding for a missing or unsuitable stream, with a command that satisfies all stream checks.
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
    // nats-server rejects overlapping subjects of streams.
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
    let settings = &place.outbox.section.stream;
    let handle = jetstream::new(client.clone())
        .get_stream(&settings.name)
        .await
        .map_err(|error| describe(&error))?;
    let stream = stream::facts(handle.cached_info(), &client);
    found.made([
        Check::Nats,
        Check::Stream,
        Check::DuplicateWindow,
        Check::MaxAge,
        Check::Discard,
        Check::MaxBytes,
        Check::StreamRetention,
        Check::Replicas,
        Check::MaxMessagesPerSubject,
        Check::PayloadLimit,
        Check::NatsVersion,
    ]);
    found.findings.extend(of_stream(&stream, wanted));
    let consumers: Vec<consumer::Info> = handle
        .consumers()
        .try_collect()
        .await
        .map_err(|error| describe(&error))?;
    let durables: Vec<consumer::Info> = consumers
        .into_iter()
        .filter(|info| info.config.durable_name.is_some())
        .collect();
    if durables.is_empty() {
        found.made(OF_STREAM.into_iter().chain(OF_TABLES));
        return Ok(());
    }
    let (rows, error) = stream::watched(place, client)
        .await
        .map_err(|error| error.to_string())?;
    found.made(OF_STREAM);
    match error {
        None => {
            found.made(OF_TABLES);
            let unseen = stream::unseen(&rows);
            let unseen = unseen.map(|unseen| format!("dead letters and pauses of consumers: {unseen}"));
            found.unseen.extend(unseen);
        }
        Some(error) => found.unseen.push(format!(
            "pauses, dead letters and retention of consumers, because their tables cannot be read here ({error}); if they are in another \
             database, add an `[[outbox]]` with it to the file"
        )),
    }
    for info in durables {
        let row = rows.iter().find(|row| row.consumer == info.name).cloned();
        let facts = consumer_facts(place, &info, row).await;
        found.findings.extend(of_consumer(&facts, &stream));
    }
    Ok(())
}

async fn consumer_facts(place: &Place, info: &consumer::Info, row: Option<ConsumerRow>) -> ConsumerFacts {
    let db = place.store.connection();
    let table = place
        .outbox
        .table_names()
        .map(|names| names.table(db.get_database_backend(), "inbox_messages"));
    let memory: Option<Duration> = match table {
        // The consumer checks already report a missing table.
        Ok(table) => inbox_memory(db, &table, &info.name).await.ok().flatten(),
        Err(_) => None,
    };
    ConsumerFacts {
        name: info.name.clone(),
        row,
        memory,
    }
}
