//! The rows of strategy *sequence*: a consumer's progress in an aggregate.
//!
//! Invariants: a row is changed only by the holder of the row lock (primary key), or by a statement
//! that compares the row's value. Numbers never decrease. Lock waits respect the [lock
//! limit](super::lock_limit).

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

use outbox_core::{Aggregate, Message};
use outbox_sea_orm::Sql;
use sea_orm::{ConnectionTrait, DbBackend, DbErr};
use uuid::Uuid;

use super::sequence::Place;
use super::sql::{InboxSql, changed};
use crate::columns::plus_micros;

/// Lifetime of a failing mark in microseconds, longer than any delay between two attempts. An older
/// mark belongs to a stream that was purged or recreated.
const MARK_MICROS: i64 = 24 * 3_600_000_000;

#[derive(Debug, Clone, Copy)]
pub(crate) struct NumberedEvent {
    pub(crate) sequence: u64,
    pub(crate) id: Uuid,
    /// Time of recording in microseconds since 1970, on the clock of the producer's database.
    pub(crate) recorded_at: i64,
}

impl NumberedEvent {
    pub(crate) fn of(message: &Message) -> Option<Self> {
        let recorded_at = message.created_at.unix_timestamp_nanos() / 1000;
        Some(Self {
            sequence: message.sequence?,
            id: message.event_id.as_uuid(),
            recorded_at: i64::try_from(recorded_at).unwrap_or_default(),
        })
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SequenceState {
    /// Last applied number: this number and all earlier numbers are done, except the missing
    /// numbers.
    pub(super) last: u64,
    pub(super) last_event: Option<Uuid>,
    /// Numbers and times grow together, so a done number with a later time is another event.
    pub(super) last_recorded_at: i64,
    pub(super) failing: Option<u64>,
    pub(super) missing: Missing,
}

/// Ranges of missing numbers, ascending and disjoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Missing(Vec<(u64, u64)>);

impl Missing {
    pub(super) fn contains(&self, number: u64) -> bool {
        self.0
            .iter()
            .any(|&(first, last)| (first..=last).contains(&number))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, range: RangeInclusive<u64>) {
        if !range.is_empty() {
            self.0.push((*range.start(), *range.end()));
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> bool {
        let Some(index) = self
            .0
            .iter()
            .position(|&(first, last)| (first..=last).contains(&number))
        else {
            return false;
        };
        let (first, last) = self.0[index];
        let rest = [(first, number - 1), (number + 1, last)]
            .into_iter()
            .filter(|(first, last)| first <= last);
        self.0.splice(index..=index, rest);
        true
    }

    pub(super) fn join_closest(&mut self) {
        let gaps = self.0.windows(2).map(|pair| pair[1].0 - pair[0].1);
        if let Some((index, _)) = gaps.enumerate().min_by_key(|&(_, gap)| gap) {
            self.0[index].1 = self.0[index + 1].1;
            self.0.remove(index + 1);
        }
    }

    fn to_text(&self) -> Result<Option<String>, DbErr> {
        let text = || serde_json::to_string(&self.0).map_err(|error| DbErr::Json(error.to_string()));
        (!self.0.is_empty()).then(text).transpose()
    }
}

impl InboxSql {
    /// Inserts a row; returns false for an existing row. The insert waits for a concurrent
    /// transaction with the same key.
    pub(super) async fn insert_sequence<C: ConnectionTrait>(
        &self,
        db: &C,
        place: &Place<'_>,
        state: &SequenceState,
    ) -> Result<bool, DbErr> {
        let mut sql = self.sql("INSERT INTO ");
        sql.push(&self.sequences).push(
            " (consumer, aggregate_type, aggregate_id, source, last_sequence, last_event_id, last_recorded_at, failing, missing, updated_at) VALUES (",
        );
        sql.bind(self.key(place.consumer));
        for name in [&place.aggregate.aggregate_type, &place.aggregate.id, place.source] {
            sql.push(", ").bind(self.key(name));
        }
        sql.push(", ").bind(state.last.cast_signed());
        sql.push(", ").bind(state.last_event);
        sql.push(", ").bind(state.last_recorded_at);
        sql.push(", ").bind(state.failing.map(u64::cast_signed));
        sql.push(", ").bind(state.missing.to_text()?);
        sql.push(&format!(", {})", self.lock_limit.set_in(self.now())));
        self.insert_limited(db, sql).await
    }

    /// Advances the row from the predecessor, or with `tolerant` from any earlier number if no
    /// smaller number is failing. The update waits for a concurrent transaction, and then compares
    /// the committed number.
    pub(super) async fn advance<C: ConnectionTrait>(
        &self,
        db: &C,
        place: &Place<'_>,
        tolerant: bool,
    ) -> Result<bool, DbErr> {
        let event = place.event;
        let number = event.sequence.cast_signed();
        let later = match self.backend() {
            DbBackend::Sqlite => "max",
            _ => "GREATEST",
        };
        let mut sql = self.sql("UPDATE ");
        sql.push(&self.sequences)
            .push(" SET last_sequence = ")
            .bind(number);
        sql.push(", last_event_id = ").bind(event.id);
        sql.push(&format!(", last_recorded_at = {later}(last_recorded_at, "))
            .bind(event.recorded_at)
            .push(")");
        sql.push(", failing = CASE WHEN failing > ").bind(number);
        let now = self.lock_limit.set_in(self.now());
        sql.push(&format!(" THEN failing END, updated_at = {now}"));
        self.push_where_sequence(&mut sql, place);
        if tolerant {
            sql.push(" AND last_sequence < ").bind(number);
            sql.push(" AND (failing IS NULL OR failing >= ")
                .bind(number)
                .push(")");
        } else {
            sql.push(" AND last_sequence = ").bind(number - 1);
        }
        self.lock_limit.push_restored(&mut sql, " RETURNING ");
        changed(db, sql).await
    }

    /// Writes a row. The caller holds its lock.
    pub(super) async fn set_sequence<C: ConnectionTrait>(
        &self,
        db: &C,
        place: &Place<'_>,
        state: &SequenceState,
    ) -> Result<(), DbErr> {
        let mut sql = self.sql("UPDATE ");
        sql.push(&self.sequences)
            .push(" SET last_sequence = ")
            .bind(state.last.cast_signed());
        sql.push(", last_event_id = ").bind(state.last_event);
        sql.push(", last_recorded_at = ").bind(state.last_recorded_at);
        sql.push(", failing = ").bind(state.failing.map(u64::cast_signed));
        sql.push(", missing = ").bind(state.missing.to_text()?);
        sql.push(&format!(", updated_at = {}", self.now()));
        self.push_where_sequence(&mut sql, place);
        changed(db, sql).await.map(drop)
    }

    /// Marks a number as failing. A smaller mark is kept; the same mark is renewed. The lock limit
    /// is not restored, because no handler runs in this transaction.
    pub(super) async fn mark_failing<C: ConnectionTrait>(
        &self,
        db: &C,
        place: &Place<'_>,
    ) -> Result<bool, DbErr> {
        let number = place.event.sequence.cast_signed();
        let mut sql = self.sql("UPDATE ");
        sql.push(&self.sequences)
            .push(" SET failing = ")
            .bind(number)
            .push(&format!(", updated_at = {}", self.lock_limit.set_in(self.now())));
        self.push_where_sequence(&mut sql, place);
        sql.push(" AND last_sequence < ").bind(number);
        sql.push(" AND (failing IS NULL OR failing >= ").bind(number);
        sql.push(&format!(" OR {})", self.is_forgotten()));
        changed(db, sql).await
    }

    /// Reads a row. With `lock`, the row lock holds until the transaction ends, and the caller
    /// restores the lock limit.
    pub(super) async fn sequence_state<C: ConnectionTrait>(
        &self,
        db: &C,
        place: &Place<'_>,
        lock: bool,
    ) -> Result<Option<SequenceState>, DbErr> {
        let mut sql = self.sql(format!(
            "SELECT last_sequence, last_event_id, last_recorded_at, CASE WHEN {} THEN NULL ELSE failing END AS failing, missing FROM {}",
            self.is_forgotten(),
            self.sequences
        ));
        self.push_where_sequence(&mut sql, place);
        if lock && self.backend() != DbBackend::Sqlite {
            self.lock_limit.push_set(&mut sql);
            sql.push(" FOR UPDATE");
        }
        let Some(row) = db.query_one_raw(sql.statement()).await? else {
            return Ok(None);
        };
        let missing: Option<String> = row.try_get("", "missing")?;
        let missing = missing.as_deref().map(serde_json::from_str).transpose();
        Ok(Some(SequenceState {
            last: row.try_get::<i64>("", "last_sequence")?.cast_unsigned(),
            last_event: row.try_get("", "last_event_id")?,
            last_recorded_at: row.try_get("", "last_recorded_at")?,
            failing: row.try_get::<Option<i64>>("", "failing")?.map(i64::cast_unsigned),
            missing: Missing(
                missing
                    .map_err(|error| DbErr::Json(format!("sequence {place:?}: {error}")))?
                    .unwrap_or_default(),
            ),
        }))
    }

    pub(crate) async fn last_sequences<'a, C: ConnectionTrait>(
        &self,
        db: &C,
        consumer: &str,
        aggregates: impl IntoIterator<Item = (&'a Aggregate, &'a str)>,
    ) -> Result<HashMap<(Aggregate, &'a str), u64>, DbErr> {
        let mut ids_by_type: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for (aggregate, source) in aggregates {
            let ids = ids_by_type
                .entry((&aggregate.aggregate_type, source))
                .or_default();
            ids.push(&aggregate.id);
        }
        let mut last = HashMap::new();
        for ((aggregate_type, source), ids) in ids_by_type {
            let mut sql = self.sql(format!(
                "SELECT aggregate_id, last_sequence FROM {} WHERE consumer = ",
                self.sequences
            ));
            sql.bind(self.key(consumer));
            sql.push(" AND aggregate_type = ").bind(self.key(aggregate_type));
            sql.push(" AND source = ").bind(self.key(source));
            sql.push(" AND aggregate_id IN ");
            let padding = ids.len().next_power_of_two() - ids.len();
            let padded = ids.iter().chain(std::iter::repeat_n(&ids[0], padding));
            sql.bind_rows([padded.map(|id| self.key(id))]);
            for row in db.query_all_raw(sql.statement()).await? {
                let id = match self.backend() {
                    DbBackend::MySql => {
                        String::from_utf8_lossy(&row.try_get::<Vec<u8>>("", "aggregate_id")?).into_owned()
                    }
                    _ => row.try_get("", "aggregate_id")?,
                };
                let number = row.try_get::<i64>("", "last_sequence")?.cast_unsigned();
                last.insert((Aggregate::new(aggregate_type, id), source), number);
            }
        }
        Ok(last)
    }

    fn push_where_sequence(&self, sql: &mut Sql, place: &Place<'_>) {
        sql.push(" WHERE consumer = ").bind(self.key(place.consumer));
        sql.push(" AND aggregate_type = ")
            .bind(self.key(&place.aggregate.aggregate_type));
        sql.push(" AND aggregate_id = ")
            .bind(self.key(&place.aggregate.id));
        sql.push(" AND source = ").bind(self.key(place.source));
    }

    pub(crate) fn is_forgotten(&self) -> String {
        let limit = plus_micros(self.backend(), self.now(), &(-MARK_MICROS).to_string());
        format!("updated_at < {limit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(ranges: &[(u64, u64)]) -> Missing {
        Missing(ranges.to_vec())
    }

    #[test]
    fn removing_a_number_leaves_its_neighbours() {
        for (number, rest) in [
            (1, vec![(2, 5), (9, 9)]),
            (3, vec![(1, 2), (4, 5), (9, 9)]),
            (5, vec![(1, 4), (9, 9)]),
            (9, vec![(1, 5)]),
        ] {
            let mut ranges = missing(&[(1, 5), (9, 9)]);
            assert!(ranges.remove(number), "{number}");
            assert_eq!(ranges, missing(&rest), "{number}");
        }
        assert!(!missing(&[(1, 5)]).remove(6));
    }

    #[test]
    fn joining_keeps_every_missing_number() {
        let mut ranges = missing(&[(1, 2), (10, 12), (14, 14), (90, 95)]);
        ranges.join_closest();
        assert_eq!(ranges, missing(&[(1, 2), (10, 14), (90, 95)]));
        let mut one = missing(&[(3, 3)]);
        one.join_closest();
        assert_eq!(one, missing(&[(3, 3)]));
    }

    #[test]
    fn empty_range_is_not_stored() {
        let mut ranges = Missing::default();
        ranges.push(RangeInclusive::new(5, 4));
        assert_eq!(ranges, Missing::default());
        assert_eq!(ranges.to_text().unwrap(), None);
        ranges.push(4..=4);
        assert_eq!(ranges.to_text().unwrap().as_deref(), Some("[[4,4]]"));
    }
}
