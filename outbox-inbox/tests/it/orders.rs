//! Test handlers with a result per order, and processes that crash.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Message, MessageId, NewMessage, Publisher as _};
use outbox_inbox::{HandlerError, Tx};
use outbox_testing::MemoryBroker;
use sea_orm::{ConnAcquireErr, ConnectionTrait as _, DbBackend, DbErr, Statement};
use time::OffsetDateTime;
use tokio::sync::watch;

use crate::support::{OrderPlaced, SOON, TestDb};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    Fail,
    Fatal,
    NotYet(Duration),
    Wait,
    Lose,
}

#[derive(Debug, Clone)]
pub(crate) struct Orders(Arc<watch::Sender<State>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    rules: HashMap<u64, Rule>,
    lines: HashMap<(u64, u32), Rule>,
    pub(crate) runs: Vec<(u64, u32)>,
    pub(crate) batches: Vec<usize>,
}

impl State {
    fn rule(&self, event: &OrderPlaced) -> Option<Rule> {
        let line = self.lines.get(&(event.order_id, event.line));
        line.or_else(|| self.rules.get(&event.order_id)).copied()
    }

    pub(crate) fn runs_of(&self, order_id: u64) -> usize {
        self.runs.iter().filter(|(order, _)| *order == order_id).count()
    }
}

impl Default for Orders {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(State::default())))
    }
}

impl Orders {
    pub(crate) fn rule(&self, order_id: u64, rule: impl Into<Option<Rule>>) {
        self.0.send_modify(|state| match rule.into() {
            Some(rule) => drop(state.rules.insert(order_id, rule)),
            None => drop(state.rules.remove(&order_id)),
        });
    }

    pub(crate) fn rule_all(&self, orders: impl IntoIterator<Item = u64>, rule: Rule) {
        self.0.send_modify(|state| {
            state
                .rules
                .extend(orders.into_iter().map(|order_id| (order_id, rule)))
        });
    }

    pub(crate) fn line_rule(&self, line: (u64, u32), rule: impl Into<Option<Rule>>) {
        self.0.send_modify(|state| match rule.into() {
            Some(rule) => drop(state.lines.insert(line, rule)),
            None => drop(state.lines.remove(&line)),
        });
    }

    pub(crate) fn seen(&self) -> State {
        self.0.borrow().clone()
    }

    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let mut receiver = self.0.subscribe();
        let waiting = tokio::time::timeout(SOON, receiver.wait_for(|state| holds(state)));
        assert!(
            matches!(waiting.await, Ok(Ok(_))),
            "{what} did not happen: {:?}",
            self.seen()
        );
    }

    pub(crate) fn called_with(&self, messages: usize) {
        self.0.send_modify(|state| state.batches.push(messages));
    }

    pub(crate) async fn note(
        &self,
        consumer: &str,
        event: &OrderPlaced,
        tx: &Tx<'_>,
    ) -> Result<(), HandlerError> {
        let OrderPlaced { order_id, line } = event;
        let transaction = match tx.get_database_backend() {
            DbBackend::Postgres => "txid_current()",
            _ => "0",
        };
        tx.execute_unprepared(&format!(
            "INSERT INTO noted (consumer, order_id, line, tx) VALUES ('{consumer}', {order_id}, {line}, {transaction})"
        ))
        .await?;
        self.follow(event).await
    }

    pub(crate) async fn follow(&self, event: &OrderPlaced) -> Result<(), HandlerError> {
        let mut rule = None;
        self.0.send_modify(|state| {
            state.runs.push((event.order_id, event.line));
            rule = state.rule(event);
        });
        match rule {
            None => Ok(()),
            Some(Rule::Fail) => Err(HandlerError::retry("out of stock")),
            Some(Rule::NotYet(wait)) => Err(HandlerError::retry_after(wait)),
            Some(Rule::Fatal) => Err(HandlerError::fatal("unknown product")),
            Some(rule @ (Rule::Wait | Rule::Lose)) => {
                let mut receiver = self.0.subscribe();
                let over = receiver.wait_for(|state| state.rule(event) != Some(rule));
                over.await.map_err(HandlerError::retry)?;
                match rule {
                    Rule::Lose => Err(DbErr::ConnectionAcquire(ConnAcquireErr::Timeout))?,
                    _ => Ok(()),
                }
            }
        }
    }
}

pub(crate) async fn prepare(test: &TestDb) {
    let id = match test.sql_backend() {
        DbBackend::Postgres => "BIGSERIAL PRIMARY KEY",
        DbBackend::MySql => "BIGINT PRIMARY KEY AUTO_INCREMENT",
        _ => "INTEGER PRIMARY KEY",
    };
    test.execute(&format!(
        "CREATE TABLE noted (id {id}, consumer TEXT, order_id BIGINT, line BIGINT, tx BIGINT)"
    ))
    .await;
}

pub(crate) async fn lines(test: &TestDb, consumer: &str, order_id: u64) -> Vec<i64> {
    let sql =
        format!("SELECT line FROM noted WHERE consumer = '{consumer}' AND order_id = {order_id} ORDER BY id");
    let statement = Statement::from_string(test.sql_backend(), sql);
    let rows = test.db.query_all_raw(statement).await.unwrap();
    rows.iter().map(|row| row.try_get("", "line").unwrap()).collect()
}

pub(crate) fn numbered(order_id: u64, line: u32) -> Message {
    NewMessage::from_event(&OrderPlaced { order_id, line })
        .unwrap()
        .into_message(Some(u64::from(line)), OffsetDateTime::now_utc())
}

pub(crate) fn copy(message: &Message) -> Message {
    Message {
        id: MessageId::fresh(),
        ..message.clone()
    }
}

pub(crate) async fn put(broker: &MemoryBroker, message: &Message) {
    broker.publisher().publish(message).await.unwrap();
}

/// Simulates a process that crashes when the future ends: its connections end, and the server rolls
/// back.
pub(crate) async fn crash_after<F: Future<Output = ()>>(process: impl FnOnce() -> F + Send + 'static) {
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(process());
        runtime.shutdown_timeout(SOON);
    });
    tokio::task::spawn_blocking(move || process.join().unwrap())
        .await
        .unwrap();
}

/// A handler that stores its deliveries.
#[macro_export]
macro_rules! noting {
    ($handler:ident, consumer = $consumer:literal $(, $($options:tt)+)?) => {
        #[outbox_inbox::idempotent_handler(consumer = $consumer $(, $($options)+)?)]
        async fn $handler(
            event: outbox_inbox::Event<$crate::support::OrderPlaced>,
            tx: outbox_inbox::Tx<'_>,
            orders: outbox_inbox::HandlerState<$crate::orders::Orders>,
        ) -> Result<(), outbox_inbox::HandlerError> {
            orders.note($consumer, &event, &tx).await
        }
    };
}
