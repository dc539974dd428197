//! Forgetting aggregates.

use std::time::Duration;

use outbox_core::message::Aggregate;
use outbox_core::store::{Forgotten, MessageStatus, Operation};

use super::{Row, State};

impl State {
    pub(in super::super) fn forget_as(
        &mut self,
        aggregates: &[Aggregate],
        operation: &Operation,
    ) -> Forgotten {
        let mut forgotten = Forgotten::default();
        for aggregate in aggregates {
            let rows = || {
                self.rows
                    .values()
                    .filter(|row| row.message.aggregate == *aggregate)
            };
            let is_left = |row: &Row| match row.status {
                MessageStatus::Pending | MessageStatus::Waiting | MessageStatus::Logged => true,
                MessageStatus::Dead => row.halts,
                MessageStatus::Published => false,
            };
            if rows().any(is_left) {
                forgotten.left.push(aggregate.clone());
                continue;
            }
            let rows: Vec<(i64, Option<String>)> =
                rows().map(|row| (row.row_id, row.dedup_key.clone())).collect();
            for (row_id, dedup_key) in rows {
                self.delete(row_id);
                if let Some(key) = dedup_key {
                    self.dedup_keys.remove(&key);
                }
                forgotten.messages += 1;
            }
            self.heads.remove(aggregate);
        }
        if forgotten.left.len() < aggregates.len() {
            self.note(operation, forgotten.messages);
        }
        forgotten
    }

    pub(in super::super) fn forget_idle(&mut self, aggregate_type: &str, idle_for: Duration) -> u64 {
        let now = self.now();
        let is_old = |recorded| Duration::try_from(now - recorded).unwrap_or_default() >= idle_for;
        let idle: Vec<Aggregate> = self
            .heads
            .iter()
            .filter(|(aggregate, head)| {
                aggregate.aggregate_type == aggregate_type && head.recorded_at.is_none_or(is_old)
            })
            .map(|(aggregate, _)| aggregate.clone())
            .filter(|aggregate| {
                self.rows
                    .values()
                    .all(|row| row.message.aggregate != *aggregate || row.status == MessageStatus::Published)
            })
            .collect();
        for aggregate in &idle {
            self.heads.remove(aggregate);
        }
        idle.len() as u64
    }
}
