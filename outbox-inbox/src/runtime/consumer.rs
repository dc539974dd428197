//! One consumer of a running inbox: its handlers, and the state that all its deliveries share.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outbox_core::codec;
use outbox_core::{Catalogue, ConsumerSpec, DedupStore, EventDescriptor, Incoming, Message, StartAt};
use outbox_sea_orm::OutboxConfig;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::health::ConsumerVitals;
use super::met::Met;
use super::report::Tally;
use super::routed::{Refused, Route, RoutedMessage};
use crate::config::InboxConfig;
use crate::database::Database;
use crate::dead_letter::StoredDeadLetter;
use crate::dedup::attempts::Attempts;
use crate::dedup::claim::Claimant;
use crate::dedup::sql::InboxSql;
use crate::handler::{HandlerLimits, Order, Registration, StateMap, Strategy};
use crate::hook::Hooks;
use crate::interest::Interest;
use crate::layer::Middleware;
use crate::upcast::Upcasters;

/// The state that all consumers of an inbox share, and the settings, which may be those of one of them.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) sql: InboxSql,
    pub(crate) state: StateMap,
    pub(crate) outbox: OutboxConfig,
    pub(crate) config: InboxConfig,
    /// Where new consumers start.
    pub(crate) starts: HashMap<String, StartAt>,
    pub(crate) limits: Vec<(Registration, HandlerLimits)>,
    pub(crate) upcasters: Upcasters,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    pub(crate) store: Option<Arc<dyn DedupStore>>,
    pub(crate) hooks: Hooks,
    pub(crate) tally: Arc<Tally>,
    pub(crate) belongs: Belongs,
}

/// [`Subscriber::belongs`](outbox_core::Subscriber::belongs).
pub(crate) type Belongs = Arc<dyn Fn(&Message, &str, Option<&[&'static str]>) -> bool + Send + Sync>;

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The two steps of a shutdown.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    /// Cancelled when nothing may start any more.
    pub(crate) soft: CancellationToken,
    /// Cancelled when running handlers must end.
    pub(crate) hard: CancellationToken,
}

/// Whether a handler fails for all messages.
#[derive(Debug, Default)]
pub(crate) struct HandlerHealth {
    /// Runs that failed since the last one that did not.
    failed: AtomicU32,
}

impl HandlerHealth {
    /// So many failures in a row are hardly the fault of single messages.
    const FAILING: u32 = 8;

    pub(super) fn succeeded(&self) {
        self.failed.store(0, Ordering::Relaxed);
    }

    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failed.load(Ordering::Relaxed) >= Self::FAILING
    }
}

/// A consumer and its handlers.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) name: &'static str,
    pub(crate) shared: Arc<Shared>,
    /// What it notes for [`InboxHealthCheck`](super::health::InboxHealthCheck).
    pub(super) vitals: Arc<ConsumerVitals>,
    /// By event type and version.
    handlers: HashMap<String, BTreeMap<u32, Arc<Registration>>>,
    /// Handlers of undecoded messages, those with the narrowest selection first.
    raw: Vec<(&'static EventDescriptor, Arc<Registration>)>,
    /// By the handler's name.
    health: HashMap<&'static str, Arc<HandlerHealth>>,
    interest: Interest,
    /// The fixed subjects of each event type that this program knows.
    fixed_subjects: HashMap<String, Vec<&'static str>>,
    pub(super) order: Order,
    /// Most messages in one transaction.
    pub(super) batch_max: usize,
    /// Whether its messages take their turn by number.
    pub(super) sequenced: bool,
    /// Whether numbers are the order of any of its handlers.
    numbered: bool,
    /// Whether somebody has paused it.
    pub(super) paused: watch::Sender<bool>,
    /// When the last pause ended.
    resumed_at: Mutex<Option<Instant>>,
    pub(super) unknown_met: Mutex<Met>,
    /// The broker could not say where aggregates begin, and is not asked before this time.
    ask_again_at: Mutex<Option<Instant>>,
    /// For how many more messages the broker is asked where their aggregates begin, before the database.
    pub(super) late_beginnings: AtomicU32,
}

/// Pause after the broker could not say where an aggregate begins. Without the permission each question would take a second of a slot.
const ASK_PAUSE: Duration = Duration::from_secs(60);

impl Consumer {
    /// A consumer with checked handlers: no two of them want the same event, and they agree on the order.
    pub(crate) fn new(name: &'static str, handlers: &[Registration], shared: Arc<Shared>) -> Self {
        // Contradictions among them have been reported at the start.
        let linked: Vec<_> = Catalogue::linked().unwrap_or_default().iter().collect();
        let mut consumer = Self {
            name,
            shared,
            vitals: Arc::new(ConsumerVitals::new(name)),
            handlers: HashMap::new(),
            raw: Vec::new(),
            health: HashMap::new(),
            interest: Interest::of(name, handlers, &linked),
            fixed_subjects: HashMap::new(),
            order: Order::default(),
            batch_max: 1,
            sequenced: false,
            numbered: false,
            paused: watch::Sender::new(false),
            resumed_at: Mutex::default(),
            unknown_met: Mutex::default(),
            ask_again_at: Mutex::default(),
            late_beginnings: AtomicU32::default(),
        };
        for handler in handlers.iter().filter(|handler| handler.consumer == name) {
            let handler = Arc::new(*handler);
            consumer.health.entry(handler.handler).or_default();
            let options = &handler.options;
            consumer.order = options.order;
            consumer.batch_max = consumer.batch_max.max(batch_max(&handler));
            consumer.sequenced |= matches!(options.strategy, Strategy::Sequence { .. });
            consumer.numbered |= matches!(options.strategy, Strategy::Sequence { .. });
            for event in handler.events {
                if event.is_selection() {
                    consumer.raw.push((event, handler.clone()));
                    continue;
                }
                consumer
                    .handlers
                    .entry(event.event_type())
                    .or_default()
                    .insert(event.version, handler.clone());
            }
        }
        consumer
            .raw
            .sort_by_key(|(event, _)| (event.is_everything(), event.is_whole_aggregate()));
        consumer.know(&linked);
        consumer
    }

    /// Learns the fixed subjects of the event types of this program.
    fn know(&mut self, linked: &[&'static EventDescriptor]) {
        let own = self.interest.events.iter().filter(|event| !event.is_selection());
        for event in linked.iter().chain(own) {
            let known = self.fixed_subjects.entry(event.event_type()).or_default();
            known.extend(event.subject);
        }
    }

    pub(crate) fn spec(&self) -> ConsumerSpec {
        let config = &self.shared.config;
        ConsumerSpec {
            name: self.name.to_owned(),
            events: self.interest.events.clone(),
            ack_wait: config.ack_wait,
            whole_aggregates: self.interest.whole_aggregates,
            siblings: self.interest.siblings.clone(),
            in_flight_max: match self.order {
                Order::Strict => 1,
                _ => config.ack_pending_max,
            },
            prefetch: self.prefetch(),
            start_at: self.shared.starts.get(self.name).copied().unwrap_or_default(),
        }
    }

    /// Takes note of whether it is paused.
    pub(super) fn set_paused(&self, is_paused: bool) {
        if *self.paused.borrow() && !is_paused {
            *self.resumed_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
        self.paused
            .send_if_modified(|before| std::mem::replace(before, is_paused) != is_paused);
    }

    /// When the last pause ended: what is missing could not come before.
    pub(super) fn resumed_at(&self) -> Option<Instant> {
        *self.resumed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits of its handlers, by their names.
    pub(super) fn limits(&self) -> impl Iterator<Item = (&'static str, HandlerLimits)> + '_ {
        let own = self
            .shared
            .limits
            .iter()
            .filter(|(handler, _)| handler.consumer == self.name);
        own.map(|(handler, limits)| (handler.handler, *limits))
    }

    /// The largest number of deliveries that wait in the driver.
    pub(super) fn prefetch(&self) -> usize {
        match self.order {
            Order::Strict => 1,
            // Few, because nobody keeps deliveries alive that the driver holds: they wait for four handlers at most.
            _ => (4 * self.shared.config.concurrency)
                .max(2 * self.batch_max)
                .min(self.in_flight_max()),
        }
    }

    /// The largest number of deliveries in memory: enough for two batches beside each other.
    pub(super) fn in_flight_max(&self) -> usize {
        self.shared.config.in_flight_max.max(2 * self.batch_max)
    }

    /// Decodes a delivery and finds its handler.
    pub(crate) fn routed(&self, incoming: &Incoming) -> RoutedMessage {
        match codec::decode(&incoming.headers, incoming.payload.clone()) {
            Ok(message) if !self.belongs(&message, &incoming.subject) => {
                let event_type = message.event_type;
                self.unreadable(Refused::Subject { event_type })
            }
            Ok(message) => {
                let route = self.route(&message);
                let mut routed =
                    RoutedMessage::new(Ok(Arc::new(message)), route, incoming.delivery_count > 1);
                // It was decoded with the rest.
                routed.source = codec::source(&incoming.headers).unwrap_or_default().into();
                routed
            }
            Err(error) => self.unreadable(error.into()),
        }
    }

    /// The source of a message whose number is its order. Other messages of an aggregate share a lane, whoever recorded them.
    pub(super) fn numbering_source(&self, routed: &RoutedMessage) -> Option<Arc<str>> {
        self.numbered.then(|| routed.source.clone())
    }

    /// Whether a message came on a subject of its own. A dead letter is asked about again, because it was stored as it came.
    fn belongs(&self, message: &Message, subject: &str) -> bool {
        let fixed = self.fixed_subjects.get(&message.event_type);
        (self.shared.belongs)(message, subject, fixed.map(Vec::as_slice))
    }

    /// The health of the handler of a message.
    pub(super) fn health_of(&self, routed: &RoutedMessage) -> Option<Arc<HandlerHealth>> {
        match &routed.route {
            Route::Handler { handler, .. } => self.health.get(handler.handler).cloned(),
            _ => None,
        }
    }

    /// Decodes a dead letter again and finds its handler.
    pub(super) fn routed_letter(&self, letter: Arc<StoredDeadLetter>) -> RoutedMessage {
        let mut routed = self.routed(&letter.incoming);
        routed.letter = Some(letter);
        routed
    }

    fn unreadable(&self, error: Refused) -> RoutedMessage {
        RoutedMessage::new(Err(error), Route::Unreadable, false)
    }

    fn route(&self, message: &Message) -> Route {
        let Some(versions) = self.handlers.get(&message.event_type) else {
            return self.raw_route(message);
        };
        if let Some(handler) = versions.get(&message.event_version) {
            return Route::Handler {
                handler: handler.clone(),
                upcast_to: None,
            };
        }
        let upcasters = &self.shared.upcasters;
        let target = upcasters
            .reaches(&message.event_type, message.event_version, versions)
            .and_then(|version| Some((version, versions.get(&version)?)));
        match target {
            Some((version, handler)) => Route::Handler {
                handler: handler.clone(),
                upcast_to: Some(version),
            },
            None => Route::UnknownVersion,
        }
    }

    /// The route of a message whose event type no handler takes decoded.
    fn raw_route(&self, message: &Message) -> Route {
        let mut raw = self.raw.iter();
        let found = raw.find(|(event, _)| event.selects(&message.event_type));
        found.map_or(Route::NotWanted, |(_, handler)| Route::Handler {
            handler: handler.clone(),
            upcast_to: None,
        })
    }

    /// Whether the broker may be asked where aggregates begin.
    pub(super) fn may_ask(&self) -> bool {
        let at = *self.ask_again_at.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_none_or(|at| at <= Instant::now())
    }

    /// Asks the broker no more for a while, which is returned.
    pub(super) fn do_not_ask(&self) -> Duration {
        let until = Instant::now() + ASK_PAUSE;
        *self.ask_again_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        ASK_PAUSE
    }

    /// Whether messages that it has no handler for still count up the sequence of their aggregate.
    pub(super) fn keeps_sequences(&self) -> bool {
        self.interest.whole_aggregates
    }

    /// Whether it asks for messages of an aggregate type.
    pub(super) fn wants_aggregate(&self, aggregate_type: &str) -> bool {
        let mut events = self.interest.events.iter();
        events.any(|event| event.is_everything() || event.aggregate == aggregate_type)
    }

    /// Whether a message that is for others to handle may leave the lane of its aggregate: nothing waits for it, and it waits for nothing.
    pub(super) fn stands_alone(&self, routed: &RoutedMessage) -> bool {
        matches!(routed.route, Route::NotWanted) && !self.numbered
    }

    /// The place in its aggregate of a message that is for others to handle.
    pub(super) fn place_of_unknown<'a>(
        &'a self,
        message: &'a Message,
        source: &'a str,
    ) -> Option<Claimant<'a>> {
        let strategy = Strategy::Sequence { gap: None };
        (self.numbered && message.sequence.is_some())
            .then(|| self.claimant(message, source, strategy, message.event_id.as_uuid()))
    }

    pub(super) fn attempts(&self, message: &Message, handler: Option<&Registration>) -> Attempts<'_> {
        let config = &self.shared.config;
        let options = handler.map(|handler| handler.options);
        Attempts {
            sql: &self.shared.sql,
            database: &self.shared.database,
            consumer: self.name,
            event_id: message.event_id,
            attempts_max: options
                .and_then(|options| options.attempts_max)
                .unwrap_or(config.attempts_max),
            run_max: self.timeout(handler),
        }
    }

    /// Longest run of a handler.
    pub(super) fn timeout(&self, handler: Option<&Registration>) -> Duration {
        handler
            .and_then(|handler| handler.options.timeout)
            .unwrap_or(self.shared.config.handler_timeout)
    }

    /// How often a delivery in memory tells the broker that it is not forgotten.
    pub(super) fn progress_interval(&self) -> Duration {
        self.shared.config.ack_wait / 3
    }
}

/// Most messages of a handler in one transaction.
pub(super) fn batch_max(handler: &Registration) -> usize {
    handler.options.batch_max(handler.shape.several)
}
