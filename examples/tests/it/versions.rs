//! Two versions of a consumer, where the old version lacks a handler for one event type: deployed
//! together, rolled back, deployed again. Also two programs with different handlers under one
//! consumer name. Each published message is handled once.
//!
//! Each combination of strategy, order and batch setting has its own stream on a real server. Each
//! order gets a `placed`, a `cancelled` and a `reopened` event. The old version handles `placed`
//! and `reopened`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use outbox::testing::{MemoryDedupStore, backend_url, eventually};
use outbox_core::retry::Backoff;
use outbox_core::{
    ConsumerSpec, DomainEvent, EventDescriptor, NewMessage, Publisher as _, Subscriber, SubscriberError,
};
use outbox_inbox::testing::dead_letters;
use outbox_inbox::{
    Event, HandlerError, HandlerState, Inbox, InboxConfig, InboxReport, Router, Tx, UnknownEvent,
    idempotent_handler,
};
use outbox_nats::async_nats::Client;
use outbox_nats::async_nats::jetstream::{self, consumer::Info};
use outbox_nats::{
    EventStream, JetStreamPublisher, JetStreamSubscriber, JetStreamSubscription, connect, connect_options,
};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const ORDERS: u32 = 4;

const SOON: Duration = Duration::from_secs(60);

macro_rules! events {
    ($($event:ident: $name:literal,)*) => {$(
        #[derive(Debug, DomainEvent, Serialize, Deserialize)]
        #[domain_event(aggregate = "purchase", name = $name)]
        struct $event {
            #[domain_event(aggregate_id)]
            number: u32,
            key: String,
        }

        impl $event {
            fn message(number: u32, sequence: u64) -> outbox_core::Message {
                let key = format!("{number}-{}", $name);
                NewMessage::from_event(&Self { number, key })
                    .unwrap()
                    .into_message(Some(sequence), OffsetDateTime::now_utc())
            }
        }
    )*};
}

events! {
    Placed: "placed",
    Cancelled: "cancelled",
    Reopened: "reopened",
}

#[derive(Clone, Default)]
struct Journal(Arc<Mutex<BTreeMap<u32, Vec<&'static str>>>>);

impl Journal {
    fn note(&self, number: u32, what: &'static str) {
        self.0.lock().unwrap().entry(number).or_default().push(what);
    }

    /// Returns the effects of one order. The strategy `natural` may run a handler again, so each
    /// kind of effect is listed once.
    fn of(&self, case: &str, number: u32) -> Vec<&'static str> {
        let mut effects = self.0.lock().unwrap().get(&number).cloned().unwrap_or_default();
        if case.contains("natural") {
            let mut seen = BTreeSet::new();
            effects.retain(|what| seen.insert(*what));
        }
        effects
    }

    async fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        eventually(what, async || condition(self)).await;
    }
}

macro_rules! handler {
    (in_transaction, $handler:ident, $event:ident, $what:literal, [$($option:tt)*]) => {
        #[idempotent_handler(consumer = "shop", $($option)*)]
        pub(super) async fn $handler(event: Event<$event>, tx: Tx<'_>, journal: HandlerState<Journal>) -> Result<(), HandlerError> {
            let sql = format!("INSERT INTO effects (effect) VALUES ('{}')", event.key);
            tx.execute_unprepared(&sql).await?;
            journal.note(event.number, $what);
            Ok(())
        }
    };
    (outside, $handler:ident, $event:ident, $what:literal, [$($option:tt)*]) => {
        #[idempotent_handler(consumer = "shop", $($option)*)]
        pub(super) async fn $handler(event: Event<$event>, journal: HandlerState<Journal>) -> Result<(), HandlerError> {
            journal.note(event.number, $what);
            Ok(())
        }
    };
}

macro_rules! cases {
    ($($case:ident: $kind:ident [$($option:tt)*];)*) => {
        $(mod $case {
            use super::*;

            handler!($kind, placed, Placed, "placed", [$($option)*]);
            handler!($kind, cancelled, Cancelled, "cancelled", [$($option)*]);
            handler!($kind, reopened, Reopened, "reopened", [$($option)*]);

            pub(super) fn programs() -> Programs {
                let old = Router::new().handler::<placed>().handler::<reopened>();
                Programs {
                    case: stringify!($case),
                    new: old.clone().handler::<cancelled>(),
                    other: Router::new().handler::<cancelled>(),
                    old,
                }
            }
        })*

        fn all_cases() -> Vec<Programs> {
            vec![$($case::programs()),*]
        }
    };
}

cases! {
    message_id: in_transaction [strategy = message_id];
    message_id_none: in_transaction [strategy = message_id, order = none];
    message_id_strict: in_transaction [strategy = message_id, order = strict];
    message_id_batch: in_transaction [strategy = message_id, batch = 10];
    message_id_none_batch: in_transaction [strategy = message_id, order = none, batch = 10];
    sequence: in_transaction [strategy = sequence];
    sequence_strict: in_transaction [strategy = sequence, order = strict];
    sequence_batch: in_transaction [strategy = sequence, batch = 10];
    natural: outside [strategy = natural];
    natural_none: outside [strategy = natural, order = none];
    natural_strict: outside [strategy = natural, order = strict];
    natural_batch: outside [strategy = natural, batch = 10];
    key: in_transaction [strategy = key(key)];
    key_none: in_transaction [strategy = key(key), order = none];
    key_strict: in_transaction [strategy = key(key), order = strict];
    key_batch: in_transaction [strategy = key(key), batch = 10];
    constraint: in_transaction [strategy = constraint("effects.effect")];
    constraint_none: in_transaction [strategy = constraint("effects.effect"), order = none];
    constraint_strict: in_transaction [strategy = constraint("effects.effect"), order = strict];
    constraint_batch: in_transaction [strategy = constraint("effects.effect"), batch = 10];
    external: outside [strategy = external];
    external_none: outside [strategy = external, order = none];
    external_strict: outside [strategy = external, order = strict];
}

struct Programs {
    case: &'static str,
    old: Router,
    new: Router,
    other: Router,
}

impl Programs {
    /// Whether later events of an order wait for an event without a handler in this program.
    fn waits(&self) -> bool {
        self.case.contains("sequence") || self.case.contains("strict")
    }
}

struct Place {
    client: Client,
    stream: EventStream,
    publisher: JetStreamPublisher,
    name: String,
    db: DatabaseConnection,
    journal: Journal,
    store: MemoryDedupStore,
    unknown_event: UnknownEvent,
    ack_wait: Duration,
}

struct Announced {
    subscriber: JetStreamSubscriber,
    subscribed: Arc<Notify>,
}

impl Subscriber for Announced {
    type Subscription = JetStreamSubscription;

    async fn subscribe(&self, consumer: &ConsumerSpec) -> Result<JetStreamSubscription, SubscriberError> {
        let subscription = self.subscriber.subscribe(consumer).await?;
        self.subscribed.notify_one();
        Ok(subscription)
    }

    outbox_testing::__forward!(double => double.subscriber; facts, standing, belongs);
}

struct Program {
    shutdown: CancellationToken,
    task: JoinHandle<InboxReport>,
}

impl Program {
    async fn stop(self) -> InboxReport {
        self.shutdown.cancel();
        tokio::time::timeout(SOON, self.task).await.unwrap().unwrap()
    }
}

impl Place {
    async fn new(client: &Client) -> Self {
        let mut options = ConnectOptions::new("sqlite::memory:");
        options.max_connections(1); // Each connection to `:memory:` opens a separate database.
        let db = Database::connect(options).await.unwrap();
        db.execute_unprepared("CREATE TABLE effects (effect TEXT NOT NULL UNIQUE)")
            .await
            .unwrap();
        outbox_sea_orm::migrate(&db).await.unwrap();
        outbox_inbox::migrate(&db).await.unwrap();
        let name = format!(
            "t{}",
            &outbox_core::MessageId::fresh().to_string().replace('-', "")[14..]
        );
        let stream = EventStream::new(&name).with_prefix(&name).unwrap();
        let placed: [&'static EventDescriptor; 1] = [&Placed::DESCRIPTORS[0]];
        stream.provision_for(client, placed).await.unwrap();
        Self {
            client: client.clone(),
            publisher: stream.publisher(client.clone()),
            stream,
            name,
            db,
            journal: Journal::default(),
            store: MemoryDedupStore::new(),
            unknown_event: UnknownEvent::default(),
            ack_wait: Duration::from_secs(30),
        }
    }

    async fn start(&self, router: &Router) -> Program {
        let config = InboxConfig::default()
            .backoff(Backoff {
                min: Duration::from_millis(50),
                max: Duration::from_millis(400),
            })
            .ack_wait(self.ack_wait)
            .handler_timeout(self.ack_wait / 2)
            .unknown_event(self.unknown_event);
        let subscribed = Arc::new(Notify::new());
        let subscriber = Announced {
            subscriber: self.stream.subscriber(self.client.clone()),
            subscribed: subscribed.clone(),
        };
        let inbox = Inbox::new(self.db.clone(), subscriber)
            .with_router(router.clone())
            .with_config(config)
            .with_dedup_store(self.store.clone())
            .with_state(self.journal.clone());
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let task = tokio::spawn(async move { inbox.run(token).await.unwrap() });
        tokio::time::timeout(SOON, subscribed.notified()).await.unwrap();
        Program { shutdown, task }
    }

    async fn info(&self) -> Option<Info> {
        let stream = jetstream::new(self.client.clone())
            .get_stream(&self.name)
            .await
            .unwrap();
        stream.consumer_info("shop").await.ok()
    }

    async fn deliveries(&self) -> u64 {
        self.info().await.unwrap().delivered.consumer_sequence
    }

    /// Publishes three events for each order. The order numbers continue the numbers of the
    /// previous steps.
    async fn publish(&self, step: u32) -> Vec<u32> {
        let numbers: Vec<u32> = (0..ORDERS).map(|order| 10 * step + order).collect();
        for number in &numbers {
            for message in [
                Placed::message(*number, 1),
                Cancelled::message(*number, 2),
                Reopened::message(*number, 3),
            ] {
                self.publisher.publish(&message).await.unwrap();
            }
        }
        numbers
    }

    async fn until_handled(&self, case: &str, numbers: &[u32], events: usize) {
        self.journal
            .until(case, |journal| {
                numbers
                    .iter()
                    .all(|number| journal.of(case, *number).len() >= events)
            })
            .await;
    }

    async fn check(&self, programs: &Programs, numbers: &[u32]) {
        let case = programs.case;
        self.until_handled(case, numbers, 3).await;
        for number in numbers {
            let effects = self.journal.of(case, *number);
            if case.contains("sequence") {
                assert_eq!(effects, ["placed", "cancelled", "reopened"], "{case} {number}");
            }
            let mut effects = effects;
            effects.sort_unstable();
            assert_eq!(effects, ["cancelled", "placed", "reopened"], "{case} {number}");
        }
        eventually("the last acknowledgement", async || {
            let info = self.info().await.unwrap();
            info.num_pending == 0 && info.num_ack_pending == 0
        })
        .await;
        assert_eq!(dead_letters(&self.db, "shop").await.unwrap().len(), 0, "{case}");
    }

    async fn remove(self) {
        let stream = jetstream::new(self.client);
        stream.delete_stream(&self.name).await.unwrap();
    }
}

async fn deployed_rolled_back_and_deployed_again(client: &Client, programs: &Programs) {
    let mut place = Place::new(client).await;
    if programs.case == "sequence" {
        // Strategy `sequence` accepts a gap after 2 s, twice `ack_wait`. A sequence of an event
        // type that this version does not handle is no gap.
        place.ack_wait = Duration::from_secs(1);
    }
    let old = place.start(&programs.old).await;
    let mut numbers = Vec::new();
    let new = place.start(&programs.new).await;
    numbers.extend(place.publish(1).await);
    place.check(programs, &numbers).await;
    assert_eq!(new.stop().await.skipped, 0);
    let while_rolled_back = place.publish(2).await;
    if programs.waits() {
        // Each negative acknowledgement has a delay of 200 to 400 ms, longer than the time limit of
        // a gap.
        let before = place.deliveries().await;
        eventually("60 further deliveries", async || {
            place.deliveries().await >= before + 60
        })
        .await;
    } else {
        place.until_handled(programs.case, &while_rolled_back, 2).await;
    }
    assert_eq!(old.stop().await.skipped, 0);
    let old = place.start(&programs.old).await;
    numbers.extend(while_rolled_back);
    numbers.extend(place.publish(3).await);
    let report = old.stop().await;
    assert_eq!(report.skipped, 0, "{}", programs.case);
    let new = place.start(&programs.new).await;
    place.check(programs, &numbers).await;
    assert_eq!(new.stop().await.skipped, 0);
    place.remove().await;
}

async fn shared(client: &Client, programs: &Programs) {
    let place = Place::new(client).await;
    let one = place.start(&programs.old).await;
    let two = place.start(&programs.other).await;
    let numbers = place.publish(1).await;
    place.check(programs, &numbers).await;
    for program in [one, two] {
        assert_eq!(program.stop().await.skipped, 0, "{}", programs.case);
    }
    place.remove().await;
}

async fn connected(nats: &'static str) -> Option<Client> {
    Some(connect(backend_url(nats)?, connect_options()).await.unwrap())
}

async fn nothing_is_lost_between_versions(nats: &'static str) {
    let Some(client) = connected(nats).await else {
        return;
    };
    let cases = all_cases();
    join_all(
        cases
            .iter()
            .map(|programs| deployed_rolled_back_and_deployed_again(&client, programs)),
    )
    .await;
}

async fn nothing_is_lost_between_programs(nats: &'static str) {
    let Some(client) = connected(nats).await else {
        return;
    };
    let cases = all_cases();
    join_all(cases.iter().map(|programs| shared(&client, programs))).await;
}

/// Event types without a handler are skipped and counted, if the inbox is configured to skip.
async fn unhandled_event_types_can_be_skipped_or_kept(nats: &'static str) {
    let Some(client) = connected(nats).await else {
        return;
    };
    let programs = message_id::programs();
    for (unknown_event, skipped, letters) in [
        (UnknownEvent::Skip, u64::from(ORDERS), 0),
        (UnknownEvent::DeadLetter, 0, ORDERS as usize),
    ] {
        let mut place = Place::new(&client).await;
        place.start(&programs.new).await.stop().await;
        place.unknown_event = unknown_event;
        let old = place.start(&programs.old).await;
        let numbers = place.publish(1).await;
        place.until_handled(programs.case, &numbers, 2).await;
        eventually("all acknowledgements", async || {
            place.info().await.unwrap().num_ack_pending == 0
        })
        .await;
        let report = old.stop().await;
        assert_eq!((report.skipped, report.sent_back), (skipped, 0));
        assert_eq!(dead_letters(&place.db, "shop").await.unwrap().len(), letters);
        place.remove().await;
    }
}

macro_rules! on_both_servers {
    ($($test:ident,)*) => {
        mod current {
            $(#[tokio::test]
            async fn $test() {
                super::$test("OUTBOX_TEST_NATS_URL").await;
            })*
        }
        mod old {
            $(#[tokio::test]
            async fn $test() {
                super::$test("OUTBOX_TEST_NATS_OLD_URL").await;
            })*
        }
    };
}

on_both_servers! {
    nothing_is_lost_between_versions,
    nothing_is_lost_between_programs,
    unhandled_event_types_can_be_skipped_or_kept,
}
