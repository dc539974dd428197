//! Keeps the deliveries of one aggregate in their order, and apart.
//!
//! One lane per aggregate that has something in flight. Invariant: a delivery's turn comes when its predecessor in the lane has ended,
//! however that ended. Absent here: bounds; what is in flight is bounded by whoever enters, and so is the number of lanes.

use std::collections::HashMap;

use outbox_core::Aggregate;
use tokio::sync::oneshot::{self, error::TryRecvError};

/// The lanes of a consumer.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    /// The last delivery of each lane: its end closes the channel.
    tails: HashMap<Aggregate, oneshot::Receiver<()>>,
    swept_at: usize,
}

/// A place in a lane. Dropping it lets the successor go on.
#[derive(Debug)]
pub(crate) struct Place {
    predecessor: Option<oneshot::Receiver<()>>,
    _successor: Option<oneshot::Sender<()>>,
}

impl Lanes {
    /// Goes to the end of the aggregate's lane.
    pub(crate) fn enter(&mut self, aggregate: &Aggregate) -> Place {
        // Lanes that ran empty are swept out whenever their number has doubled.
        if self.tails.len() > 2 * self.swept_at.max(64) {
            self.tails
                .retain(|_, tail| matches!(tail.try_recv(), Err(TryRecvError::Empty)));
            self.swept_at = self.tails.len();
        }
        let (successor, tail) = oneshot::channel();
        Place {
            predecessor: self.tails.insert(aggregate.clone(), tail),
            _successor: Some(successor),
        }
    }
}

impl Place {
    /// A place for something that belongs to no aggregate.
    pub(crate) fn alone() -> Self {
        Self {
            predecessor: None,
            _successor: None,
        }
    }

    /// Waits until all before it in the lane have ended. Cancel-safe.
    pub(crate) async fn turn(&mut self) {
        if let Some(predecessor) = &mut self.predecessor {
            // Nothing is ever sent: the channel is closed when the predecessor's place is dropped.
            let _ = predecessor.await;
            self.predecessor = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[test]
    fn one_aggregate_waits_another_does_not() {
        let mut lanes = Lanes::default();
        let (a, b) = (Aggregate::new("order", "1"), Aggregate::new("order", "2"));
        let mut first = lanes.enter(&a);
        let mut second = lanes.enter(&a);
        let mut third = lanes.enter(&a);
        let mut other = lanes.enter(&b);
        assert!(first.turn().now_or_never().is_some());
        assert!(second.turn().now_or_never().is_none());
        assert!(other.turn().now_or_never().is_some());
        drop(first);
        assert!(second.turn().now_or_never().is_some());
        assert!(third.turn().now_or_never().is_none());
        drop(second);
        assert!(third.turn().now_or_never().is_some());
        drop(third);
        assert!(lanes.enter(&a).turn().now_or_never().is_some());
    }

    #[test]
    fn empty_lanes_are_swept_out() {
        let mut lanes = Lanes::default();
        let busy = lanes.enter(&Aggregate::new("order", "busy"));
        for id in 0..10_000 {
            drop(lanes.enter(&Aggregate::new("order", id.to_string())));
        }
        assert!(lanes.tails.len() < 300, "{}", lanes.tails.len());
        assert!(lanes.tails.contains_key(&Aggregate::new("order", "busy")));
        drop(busy);
    }
}
