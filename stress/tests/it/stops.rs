//! Consumers that are stopped with SIGTERM while they work, as in a deploy, and restarted.
//!
//! Method: consecutive processes handle 300 events of 20 aggregates and print each effect. The
//! `ack_wait` of 600 s exceeds the deadline of 300 s, so an event kept by a stopped process is
//! missing.

use std::collections::HashMap;
use std::process::Stdio;
use std::time::Duration;

use outbox_core::{Aggregate, EventDescriptor, Headers, Message, MessageId, Publisher as _};
use outbox_nats::EventStream;
use outbox_nats::async_nats::Client;
use outbox_sea_orm::TableNames;
use outbox_stress::patient;
use outbox_testing::backend_url;
use rustix::process::{Pid, Signal, kill_process};
use sea_orm::Database;
use time::OffsetDateTime;
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const PARCELS: u64 = 20;
const STEPS: u64 = 15;
const ALL: usize = (PARCELS * STEPS) as usize;

/// Time limit, far below the redelivery time of a lost delivery and far above a stall of the
/// machine.
const SOON: Duration = Duration::from_secs(300);

static MOVED: EventDescriptor = EventDescriptor {
    aggregate: "parcel",
    name: "moved",
    version: 1,
    subject: None,
    sequenced: true,
    rust_type: "Test",
    file: file!(),
    line: line!(),
};

fn moved(parcel: u64, step: u64) -> Message {
    let id = MessageId::fresh();
    Message {
        id,
        event_id: id.into(),
        aggregate: Aggregate::new("parcel", parcel.to_string()),
        sequence: Some(step),
        event_type: MOVED.event_type(),
        event_version: 1,
        subject: None,
        content_type: "application/json".to_owned(),
        payload: format!(r#"{{"parcel":{parcel},"step":{step}}}"#).into(),
        headers: Headers::default(),
        created_at: OffsetDateTime::now_utc(),
    }
}

async fn publish_all(stream: &EventStream, client: &Client) {
    let publisher = stream.publisher(client.clone());
    for step in 1..=STEPS {
        for parcel in 1..=PARCELS {
            let message = moved(parcel, step);
            // The server may have stored the message, and then drops the copy by its id.
            while let Err(error) = publisher.publish(&message).await {
                println!("again: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

struct Place {
    client: Client,
    nats_url: String,
    database_url: String,
    name: String,
}

impl Place {
    async fn new(nats: &'static str) -> Option<Self> {
        let (nats_url, database_url) = (backend_url(nats)?, backend_url("OUTBOX_TEST_POSTGRES_URL")?);
        let name = format!("t{}", &MessageId::fresh().to_string().replace('-', "")[14..]);
        let db = Database::connect(&database_url).await.unwrap();
        let names = TableNames::new().with_prefix(format!("{name}_")).unwrap();
        outbox_inbox::migration::migrate_with(&db, &names).await.unwrap();
        let stream = EventStream::new(&name).with_prefix(&name).unwrap();
        let client = patient::provision(&stream, &nats_url).await.unwrap();
        let published = tokio::time::timeout(SOON, publish_all(&stream, &client)).await;
        published.unwrap();
        Some(Self {
            client,
            nats_url,
            database_url,
            name,
        })
    }

    async fn start(&self, during: &str, stop_after: Option<usize>) -> Process {
        let stop_after = stop_after.map(|effects| format!("--stop-after={effects}"));
        let mut child = Command::new(env!("CARGO_BIN_EXE_chaos"))
            .args(["stopped-child", "--during", during, "--name", &self.name])
            .args(["--nats-url", &self.nats_url])
            .args(["--database-url", &self.database_url])
            .args(stop_after)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "ready");
        Process { child, lines }
    }
}

struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    async fn effect(&mut self) -> Option<(u64, u64)> {
        let line = self.lines.next_line().await.unwrap()?;
        let (parcel, step) = line.split_once(' ').unwrap();
        Some((parcel.parse().unwrap(), step.parse().unwrap()))
    }

    async fn stop(mut self) -> Vec<(u64, u64)> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        kill_process(pid.unwrap(), Signal::TERM).unwrap();
        let mut rest = Vec::new();
        while let Some(effect) = self.effect().await {
            rest.push(effect);
        }
        assert!(self.child.wait().await.unwrap().success());
        rest
    }
}

async fn effects_over_two_restarts(place: &Place, during: &str, effects: &mut Vec<(u64, u64)>) {
    for stop_at in [40_usize, 150] {
        let left = stop_at.saturating_sub(effects.len());
        let mut process = place.start(during, Some(left)).await;
        while effects.len() < stop_at {
            effects.push(process.effect().await.unwrap());
        }
        effects.extend(process.stop().await);
        assert!(effects.len() < ALL, "nothing was left to be stranded");
    }
    let mut process = place.start(during, None).await;
    while effects.len() < ALL {
        effects.push(process.effect().await.unwrap());
    }
    assert_eq!(process.stop().await, [], "more effects than published events");
}

async fn check(nats: &'static str, during: &'static str) {
    let Some(place) = Place::new(nats).await else {
        return;
    };
    let mut effects = Vec::new();
    let run = effects_over_two_restarts(&place, during, &mut effects);
    if tokio::time::timeout(SOON, run).await.is_err() {
        panic!("only {} of {ALL} events took effect in {SOON:?}", effects.len());
    }
    let mut last: HashMap<u64, u64> = HashMap::new();
    for (parcel, step) in effects {
        let before = last.insert(parcel, step).unwrap_or_default();
        assert_eq!(
            step,
            before + 1,
            "parcel {parcel}: {before} was followed by {step}"
        );
    }
    let context = patient::context(place.client.clone());
    context.delete_stream(&place.name).await.unwrap();
}

macro_rules! checks {
    ($($name:ident: $during:literal,)*) => {$(
        mod $name {
            #[tokio::test]
            async fn current() {
                super::check("OUTBOX_TEST_NATS_URL", $during).await;
            }
            #[tokio::test]
            async fn old() {
                super::check("OUTBOX_TEST_NATS_OLD_URL", $during).await;
            }
        }
    )*};
}

checks! {
    a_stop_during_a_handler_strands_and_inverts_nothing: "handler",
    a_stop_during_a_batch_strands_and_inverts_nothing: "batch",
    a_stop_during_a_back_off_strands_and_inverts_nothing: "back-off",
}
