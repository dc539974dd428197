//! How many rows to ask the store for.
//!
//! A database sends what was asked for, also what the relay then leaves unread because its memory is full. So the relay asks for as many rows as its bytes have
//! room for, judging by the messages that it fetched before. Invariants: before it knows any, and after a few small ones among large ones, it asks for few; and
//! what no verdict can be recorded on, which each scan meets again, does not hide what is behind it.

use std::num::NonZeroU32;

use super::poller::Query;
use crate::store::FetchedRow;

/// Rows of the first fetch, which shows how large messages are.
const ROWS_FIRST: u32 = 256;

#[derive(Debug, Default)]
pub(super) struct RowSize {
    /// The mean payload of the last fetch, or three quarters of what was learned before, if that is more.
    bytes: Option<usize>,
    /// Rows that each query asks for beyond that, because as many can neither be sent nor set aside.
    past: [u32; 2],
}

/// At most this many rows are passed over.
const PAST_MAX: u32 = 10_000;

impl RowSize {
    /// Takes note of what a fetch returned.
    pub(super) fn learn(&mut self, rows: &[FetchedRow]) {
        let sizes = rows.iter().filter_map(|row| row.message.as_ref().ok());
        let (count, bytes) = sizes.fold((0, 0_usize), |(count, bytes), message| {
            (count + 1, bytes.saturating_add(message.payload.len()))
        });
        if let Some(mean) = bytes.checked_div(count) {
            self.learn_mean(mean);
        }
    }

    fn learn_mean(&mut self, mean: usize) {
        let learned = self.bytes.unwrap_or_default();
        self.bytes = Some(mean.max(learned - learned / 4));
    }

    /// A query met so many rows that can neither be sent nor set aside, and nothing else if it was `in_vain`. Returns whether the next one gets further.
    pub(super) fn pass_over(&mut self, query: Query, rows: usize, in_vain: bool) -> bool {
        let past = &mut self.past[query as usize];
        let before = *past;
        let met = u32::try_from(rows).unwrap_or(u32::MAX);
        *past = if in_vain { met.max(before * 2) } else { met }.min(PAST_MAX);
        *past > before
    }

    /// How many rows to ask for, and how many bytes: at most `batch`, and about as many as have `bytes` of payload.
    pub(super) fn limit(&self, query: Query, batch: NonZeroU32, bytes: usize) -> (NonZeroU32, usize) {
        let rows = match self.bytes {
            None => ROWS_FIRST,
            Some(mean) => u32::try_from(bytes / mean.max(1)).unwrap_or(u32::MAX),
        };
        let rows = NonZeroU32::new(rows).unwrap_or(NonZeroU32::MIN).min(batch);
        let past = self.past[query as usize];
        let past_bytes = self
            .bytes
            .unwrap_or_default()
            .max(1)
            .saturating_mul(past as usize);
        (rows.saturating_add(past), bytes.saturating_add(past_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: NonZeroU32 = NonZeroU32::new(4000).unwrap();
    const BYTES: usize = 32 << 20;

    fn limit_after(size: &mut RowSize, mean: usize) -> u32 {
        size.learn_mean(mean);
        size.limit(Query::Pending, BATCH, BYTES).0.get()
    }

    #[test]
    fn large_messages_are_fetched_a_few_at_a_time() {
        let mut size = RowSize::default();
        size.learn(&[]);
        assert_eq!(
            size.limit(Query::Pending, BATCH, BYTES).0.get(),
            ROWS_FIRST,
            "nothing is known"
        );
        assert_eq!(limit_after(&mut size, 300), 4000);
        assert_eq!(limit_after(&mut size, 256 << 10), 128);
        let after_a_small_one = limit_after(&mut size, 300);
        assert!((129..200).contains(&after_a_small_one), "{after_a_small_one}");
        let fetches = (0..).take_while(|_| limit_after(&mut size, 300) < 4000);
        assert!(fetches.count() < 20);
        assert_eq!(limit_after(&mut size, 64 << 20), 1);
        assert_eq!(limit_after(&mut RowSize::default(), 0), 4000, "empty payloads");
    }

    #[test]
    fn what_is_passed_over_hides_nothing_behind_it() {
        let mut size = RowSize::default();
        size.learn_mean(100);
        assert!(size.pass_over(Query::Waiting, 4000, true));
        assert_eq!(
            size.limit(Query::Waiting, BATCH, BYTES),
            (NonZeroU32::new(8000).unwrap(), BYTES + 400_000)
        );
        assert_eq!(
            size.limit(Query::Pending, BATCH, BYTES),
            (BATCH, BYTES),
            "the other query"
        );
        assert!(
            size.pass_over(Query::Waiting, 4000, true),
            "the bytes were not enough"
        );
        assert!(size.pass_over(Query::Waiting, 9000, true));
        assert!(!size.pass_over(Query::Waiting, 20_000, true), "there is a bound");
        size.pass_over(Query::Waiting, 0, false);
        assert_eq!(size.limit(Query::Waiting, BATCH, BYTES), (BATCH, BYTES));
    }
}
