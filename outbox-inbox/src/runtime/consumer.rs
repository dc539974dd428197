//! One consumer of a running inbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outbox_core::{Catalogue, ConsumerSpec, DedupStore, Incoming, Message, StartAt};
use outbox_sea_orm::OutboxConfig;
use tokio_util::sync::CancellationToken;

use super::conclude::unknown_event::UnhandledTypes;
use super::health::ConsumerVitals;
use super::message::{Route, RoutedMessage};
use super::receive::pause::Pause;
use super::report::Tally;
use super::routing::Routes;
use super::run::sequence::LateBeginnings;
use crate::config::InboxConfig;
use crate::database::Database;
use crate::dead_letter::StoredDeadLetter;
use crate::dedup::attempts::Attempts;
use crate::dedup::sql::InboxSql;
use crate::handler::{Order, Registration, StateMap, Strategy};
use crate::hook::Hooks;
use crate::layer::Middleware;
use crate::upcast::Upcasters;

pub(crate) struct Shared {
    pub(crate) database: Database,
    pub(crate) sql: InboxSql,
    pub(crate) services: HandlerServices,
    pub(crate) config: InboxConfig,
    pub(crate) tally: Tally,
    pub(crate) belongs: Belongs,
}

#[derive(Clone, Default)]
pub(crate) struct HandlerServices {
    pub(crate) state: StateMap,
    pub(crate) outbox: OutboxConfig,
    pub(crate) upcasters: Upcasters,
    pub(crate) middleware: Vec<Arc<dyn Middleware>>,
    pub(crate) store: Option<Arc<dyn DedupStore>>,
    pub(crate) hooks: Hooks,
}

pub(crate) type Belongs = Arc<dyn Fn(&Message, &str, Option<&[&'static str]>) -> bool + Send + Sync>;

#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    pub(crate) soft: CancellationToken,
    pub(crate) hard: CancellationToken,
}

#[derive(Debug, Default)]
pub(crate) struct HandlerHealth {
    failed: AtomicU32,
}

impl HandlerHealth {
    /// Number of consecutive failures from which the handler counts as failing for every message.
    const FAILING: u32 = 8;

    pub(crate) fn succeeded(&self) {
        self.failed.store(0, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failed.load(Ordering::Relaxed) >= Self::FAILING
    }
}

pub(crate) struct Consumer {
    pub(crate) name: &'static str,
    pub(crate) shared: Arc<Shared>,
    start_at: StartAt,
    pub(crate) vitals: Arc<ConsumerVitals>,
    pub(crate) routes: Routes,
    pub(crate) order: Order,
    pub(crate) batch_max: usize,
    pub(crate) sequenced: bool,
    pub(crate) pause: Pause,
    pub(crate) unhandled: UnhandledTypes,
    pub(crate) late_beginnings: LateBeginnings,
}

impl Consumer {
    pub(crate) fn new(
        name: &'static str,
        handlers: &[Registration],
        shared: Arc<Shared>,
        start_at: StartAt,
    ) -> Self {
        let linked: Vec<_> = Catalogue::linked().unwrap_or_default().iter().collect();
        let own = || handlers.iter().filter(|handler| handler.consumer == name);
        Self {
            name,
            shared,
            start_at,
            vitals: Arc::new(ConsumerVitals::new(name)),
            routes: Routes::new(name, handlers, &linked),
            order: own()
                .next_back()
                .map(|handler| handler.options.order)
                .unwrap_or_default(),
            batch_max: own().map(batch_max).max().unwrap_or(1),
            sequenced: own().any(|handler| matches!(handler.options.strategy, Strategy::Sequence { .. })),
            pause: Pause::default(),
            unhandled: UnhandledTypes::default(),
            late_beginnings: LateBeginnings::default(),
        }
    }

    pub(crate) fn spec(&self) -> ConsumerSpec {
        let config = &self.shared.config;
        ConsumerSpec {
            name: self.name.to_owned(),
            events: self.routes.interest.events.clone(),
            ack_wait: config.ack_wait,
            whole_aggregates: self.routes.interest.whole_aggregates,
            siblings: self.routes.interest.siblings.clone(),
            in_flight_max: match self.order {
                Order::Strict => 1,
                _ => config.ack_pending_max,
            },
            prefetch: self.prefetch(),
            start_at: self.start_at,
        }
    }

    pub(crate) fn prefetch(&self) -> usize {
        match self.order {
            Order::Strict => 1,
            // The runtime cannot report progress for deliveries that the broker's driver still
            // buffers.
            _ => (4 * self.shared.config.concurrency)
                .max(2 * self.batch_max)
                .min(self.in_flight_max()),
        }
    }

    pub(crate) fn in_flight_max(&self) -> usize {
        self.shared.config.in_flight_bound().max(2 * self.batch_max)
    }

    pub(crate) fn routed(&self, incoming: &Incoming) -> RoutedMessage {
        self.routes.routed(&self.shared, incoming)
    }

    pub(crate) fn routed_letter(&self, letter: Arc<StoredDeadLetter>) -> RoutedMessage {
        let mut routed = self.routed(&letter.incoming);
        routed.letter = Some(letter);
        routed
    }

    pub(crate) fn numbering_source(&self, routed: &RoutedMessage) -> Option<Arc<str>> {
        self.sequenced.then(|| routed.source.clone())
    }

    pub(crate) fn keeps_sequences(&self) -> bool {
        self.routes.interest.whole_aggregates
    }

    pub(crate) fn stands_alone(&self, routed: &RoutedMessage) -> bool {
        matches!(routed.route, Route::NotWanted) && !self.sequenced
    }

    pub(crate) fn attempts(&self, message: &Message, handler: Option<&Registration>) -> Attempts<'_> {
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

    pub(crate) fn timeout(&self, handler: Option<&Registration>) -> Duration {
        handler
            .and_then(|handler| handler.options.timeout)
            .unwrap_or(self.shared.config.handler_timeout)
    }

    pub(crate) fn progress_interval(&self) -> Duration {
        self.shared.config.ack_wait / 3
    }
}

pub(crate) fn batch_max(handler: &Registration) -> usize {
    handler.options.batch_max(handler.shape.several)
}
