//! Selects the items that leave memory when a bound is reached.

use std::sync::Arc;

use tokio::time::Instant;

use super::lane::Lane;
use super::{LaneItem, LaneKey, Lanes};

#[derive(Debug, PartialEq)]
pub(crate) struct Evicted<T> {
    pub(crate) key: Arc<LaneKey>,
    pub(crate) items: Vec<T>,
    pub(crate) blocked_until: Option<Instant>,
}

impl<T: LaneItem> Lanes<T> {
    /// Selects items to return: all items of a lane that is blocked until `far` or later. Without
    /// such a lane, the later half of the longest lane.
    pub(crate) fn evict(&mut self, far: Instant, any: bool, now: Instant) -> Option<Evicted<T>> {
        let last = self
            .block_ends
            .last_key_value()
            .map(|((until, _), key)| (*until, key.clone()));
        if let Some((until, key)) = &last
            && *until >= far
        {
            return self.cut(key.clone(), 0, now);
        }
        let behind = |lane: &Lane<T>| {
            lane.queue
                .len()
                .saturating_sub(usize::from(lane.running.is_none()))
        };
        let lanes_aside = self.suspects() + self.block_ends.len();
        let longest = (any || self.counts.set_aside > lanes_aside)
            .then(|| {
                let candidates = self
                    .lanes
                    .iter()
                    .filter(|(_, lane)| any || lane.counted.set_aside > 0);
                candidates.max_by_key(|(_, lane)| behind(lane))
            })
            .flatten()
            .filter(|(_, lane)| behind(lane) > 0);
        if let Some((key, lane)) = longest {
            let stay = lane.queue.len() - behind(lane).div_ceil(2);
            return self.cut(key.clone(), stay, now);
        }
        let [_, doubtful, retries] = &self.queues;
        let key = retries
            .back()
            .or(doubtful.back())
            .cloned()
            .or(last.map(|(_, key)| key))?;
        self.cut(key, 0, now)
    }

    fn cut(&mut self, key: Arc<LaneKey>, stay: usize, now: Instant) -> Option<Evicted<T>> {
        let lane = self.lanes.get_mut(&key)?;
        let blocked_until = lane.comes_to_run(now).filter(|until| *until > now);
        let items: Vec<T> = lane.queue.split_off(stay).into();
        if stay == 0 && lane.running.is_none() {
            lane.blocked_until = None;
        }
        self.waiting -= items.len();
        self.settle(&key, now);
        Some(Evicted {
            key,
            items,
            blocked_until,
        })
    }
}
