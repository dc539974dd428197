//! All unacknowledged messages in memory.
//!
//! Invariant: each delivery reports progress to the broker every third of `ack_wait`, even if its
//! handler blocks a thread.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::Delivery;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::dead_letters::Held;
use super::origin::Origin;
use crate::dead_letter::StoredDeadLetter;
use crate::dedup::{Outcome, Retry};
use crate::handler::Order;
use crate::runtime::conclude::returns::Returns;
use crate::runtime::consumer::{Consumer, HandlerHealth, Stop};
use crate::runtime::message::{Left, RoutedMessage};
use crate::runtime::schedule::lanes::{LaneItem, LaneKey, Queue};

#[derive(Debug)]
pub(crate) struct InFlight<D> {
    pub(crate) local_id: u64,
    pub(crate) order_key: u64,
    pub(crate) origin: Origin<D>,
    pub(crate) routed: RoutedMessage,
    pub(crate) health: Option<Arc<HandlerHealth>>,
}

impl<D: Delivery> LaneItem for InFlight<D> {
    fn order_key(&self) -> u64 {
        self.order_key
    }

    fn queue(&self) -> Queue {
        if self.routed.has_failed() {
            Queue::Retries
        } else if self.health.as_ref().is_some_and(|health| health.is_failing()) {
            Queue::Doubtful
        } else {
            Queue::Ready
        }
    }
}

impl<D> Clone for InFlight<D> {
    fn clone(&self) -> Self {
        Self {
            local_id: self.local_id,
            order_key: self.order_key,
            origin: self.origin.clone(),
            routed: self.routed.clone(),
            health: self.health.clone(),
        }
    }
}

impl<D> InFlight<D> {
    pub(crate) fn note_health(&self, outcome: &Outcome) {
        let Some(health) = &self.health else { return };
        match (outcome, outcome.retry()) {
            (Outcome::Handled, _) => health.succeeded(),
            (Outcome::DeadLettered, _) | (_, Some(Retry::Failed)) => health.failed(),
            (_, Some(Retry::Postponed)) if self.routed.memory.interruptions > 0 => health.failed(),
            _ => {}
        }
    }

    pub(crate) fn is_letter(&self) -> bool {
        matches!(self.origin, Origin::DeadLetter(_))
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

pub(crate) struct Unanswered<D> {
    consumer: Arc<Consumer>,
    stop: Stop,
    tasks: TaskTracker,
    origins: HashMap<u64, Origin<D>>,
    returns: Returns<D>,
    bytes: usize,
    last_local_id: u64,
    progress: Option<JoinHandle<()>>,
}

impl<D: Delivery> Unanswered<D> {
    pub(crate) fn new(consumer: Arc<Consumer>, stop: Stop, tasks: TaskTracker) -> Self {
        Self {
            consumer,
            stop,
            tasks,
            origins: HashMap::new(),
            returns: Returns::default(),
            bytes: 0,
            last_local_id: 0,
            progress: None,
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            messages: self.origins.len(),
            bytes: self.bytes,
        }
    }

    pub(crate) fn origins(&self) -> impl Iterator<Item = (u64, &Origin<D>)> {
        self.origins.iter().map(|(local_id, origin)| (*local_id, origin))
    }

    pub(crate) fn get(&self, local_id: u64) -> Option<&Origin<D>> {
        self.origins.get(&local_id)
    }

    pub(crate) fn enter(&mut self, origin: Origin<D>, routed: RoutedMessage) -> (LaneKey, InFlight<D>) {
        self.last_local_id += 1;
        let local_id = self.last_local_id;
        self.bytes += origin.bytes();
        self.origins.insert(local_id, origin.clone());
        let key = self.lane_of(&routed);
        let in_flight = InFlight {
            local_id,
            order_key: self
                .number_of(&key, &routed)
                .unwrap_or(origin.incoming().stream_sequence),
            health: self.consumer.routes.health_of(&routed),
            origin,
            routed,
        };
        (key, in_flight)
    }

    /// With strategy `sequence`, a lane sorts messages by this sequence. In stream order, a message
    /// could wait for a predecessor that is behind it in the lane.
    fn number_of(&self, key: &LaneKey, routed: &RoutedMessage) -> Option<u64> {
        match (key, &routed.message) {
            (LaneKey::Aggregate(..), Ok(message)) if self.consumer.keeps_sequences() => message.sequence,
            _ => None,
        }
    }

    pub(crate) fn lane_of(&self, routed: &RoutedMessage) -> LaneKey {
        match (self.consumer.order, &routed.message) {
            (Order::Strict, _) => LaneKey::All,
            (Order::Aggregate, Ok(message)) if !self.consumer.stands_alone(routed) => {
                LaneKey::Aggregate(message.aggregate.clone(), self.consumer.numbering_source(routed))
            }
            _ => LaneKey::Alone(self.last_local_id),
        }
    }

    pub(crate) fn answered(&mut self, local_id: u64) -> Option<Origin<D>> {
        let origin = self.origins.remove(&local_id)?;
        self.bytes -= origin.bytes();
        Some(origin)
    }

    pub(crate) fn give_back(&mut self, in_flight: Vec<InFlight<D>>, wait: Duration) -> Left {
        for in_flight in &in_flight {
            self.answered(in_flight.local_id);
        }
        let (consumer, stop) = (self.consumer.clone(), self.stop.clone());
        let (left, task) = self.returns.give_back(in_flight, wait, consumer, stop);
        self.tasks.spawn(task);
        left
    }

    /// Waits until the broker has answered all returned deliveries. Call it after the consumer has
    /// begun to stop.
    pub(crate) fn returned(&self) -> impl Future<Output = ()> + Send + use<D> {
        self.returns.done()
    }

    pub(crate) fn report_progress(&mut self) {
        if self.progress.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let mut origins = self.returns.origins();
        origins.extend(self.origins.values().cloned());
        self.progress = Some(self.tasks.spawn(async move {
            for origin in origins {
                origin.progress().await;
            }
        }));
    }

    pub(crate) fn held_letters(&self, apart: usize) -> Held {
        let mut held = Held::default();
        let is_of_aggregates = self.consumer.order == Order::Aggregate;
        for letter in self.origins.values().filter_map(Origin::letter) {
            held.known.insert(letter.id);
            held.aggregates
                .extend(letter.aggregate.clone().filter(|_| is_of_aggregates));
        }
        held.ready = held.aggregates.len().saturating_sub(apart);
        if is_of_aggregates {
            let leaving = self.returns.origins();
            let leaving = leaving.iter().filter_map(Origin::letter);
            held.aggregates
                .extend(leaving.filter_map(|letter| letter.aggregate.clone()));
        }
        held.room = self
            .consumer
            .shared
            .config
            .buffer_bytes
            .saturating_sub(self.bytes);
        held
    }

    /// Whether an earlier dead letter is in memory: a dead letter of an older stream, or a dead
    /// letter that is still being returned.
    pub(crate) fn holds_older(&self, letter: &StoredDeadLetter) -> bool {
        if self.consumer.order == Order::None {
            return false;
        }
        let is_strict = self.consumer.order == Order::Strict;
        let precedes = |left: &Arc<StoredDeadLetter>| {
            is_strict || left.aggregate.is_some() && left.aggregate == letter.aggregate
        };
        let mut held = self.origins.values().filter_map(Origin::letter);
        held.any(|held| held.is_of_older_stream_than(letter))
            || self
                .returns
                .origins()
                .iter()
                .filter_map(Origin::letter)
                .any(precedes)
    }
}
