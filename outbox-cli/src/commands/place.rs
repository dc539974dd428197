//! An outbox of the configuration, opened for an operator.
//!
//! Invariants: each answer is waited for within a bound. No error shows an address. Nothing is made or changed here: neither a table nor a stream.

use std::time::Duration;

use outbox::Failure;
use outbox::core::{Publisher as _, SensitiveFields, describe};
use outbox::nats::JetStreamPublisher;
use outbox::nats::async_nats::Client;
use outbox::sea_orm::{ConnectError, SqlStore};
use outbox_admin::BrokerCheck;
use sea_orm::{ConnectOptions, Database};

use super::arguments::PlaceArguments;
use super::{servers, sessions};
use crate::config::{Config, Environment, Outbox};
use crate::failure::CommandError;
use crate::output::say;

/// Longest wait for a connection to NATS.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// An outbox and its store. NATS is connected to when it is needed.
pub(super) struct Place {
    pub(super) outbox: Outbox,
    pub(super) store: SqlStore,
    pub(super) timeout: Duration,
}

impl Place {
    /// Opens the outbox that the arguments name, or the only one.
    pub(super) async fn open(arguments: &PlaceArguments) -> Result<Self, CommandError> {
        let mut outboxes = chosen(arguments)?;
        let (Some(outbox), true) = (outboxes.pop(), outboxes.is_empty()) else {
            return Err(CommandError::configuration(
                "the file has several outboxes; choose one with `--outbox NAME`",
            ));
        };
        Self::of(outbox, arguments.timeout).await
    }

    /// Opens the outbox that the arguments name, or all.
    pub(super) async fn open_all(arguments: &PlaceArguments) -> Result<Vec<Self>, CommandError> {
        let mut places = Vec::new();
        for outbox in chosen(arguments)? {
            places.push(Self::of(outbox, arguments.timeout).await?);
        }
        Ok(places)
    }

    async fn of(outbox: Outbox, timeout: Duration) -> Result<Self, CommandError> {
        Self::connect(outbox, timeout, |options| {
            options.max_connections(1);
        })
        .await
    }

    /// The same outbox over sessions that cannot write, and whose statements end by themselves. They are opened when they are needed.
    pub(super) async fn reading(&self, sessions: u32) -> Result<Self, CommandError> {
        let timeout = self.timeout;
        Self::connect(self.outbox.clone(), timeout, |options| {
            options.max_connections(sessions);
            sessions::cannot_write(options, timeout);
        })
        .await
    }

    async fn connect(
        outbox: Outbox,
        timeout: Duration,
        set: impl FnOnce(&mut ConnectOptions),
    ) -> Result<Self, CommandError> {
        let mut options = ConnectOptions::new(outbox.database_url.expose());
        options
            .min_connections(0)
            .connect_lazy(true)
            .acquire_timeout(timeout)
            .sqlx_logging(false);
        set(&mut options);
        // The error of SeaORM would show the address with its password.
        let db = Database::connect(options)
            .await
            .map_err(|_| ConnectError::Address);
        let db = db.map_err(CommandError::configuration)?;
        let names = outbox.table_names().map_err(CommandError::configuration)?;
        let store = SqlStore::new(db)
            .with_names(&names)
            .map_err(CommandError::configuration)?;
        Ok(Self {
            outbox,
            store,
            timeout,
        })
    }

    /// Waits for an answer of the database within the bound, and says which outbox failed.
    pub(super) async fn ask<T, E: std::error::Error + 'static>(
        &self,
        question: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CommandError> {
        let failed = |text: String| CommandError::failed(format!("outbox `{}`: {text}", self.outbox.name()));
        match tokio::time::timeout(self.timeout, question).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(failed(with_advice(&describe(&error)))),
            Err(_) => Err(failed(format!(
                "the database has not answered within {:?}; a change may still take effect; `--timeout` waits longer",
                self.timeout
            ))),
        }
    }

    /// Waits for a change of any number of rows, without a bound: ended half-way, it would have to be repeated from its beginning.
    pub(super) async fn carry_out<T, E: std::error::Error + 'static>(
        &self,
        change: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CommandError> {
        let failed = |error: E| {
            let text = with_advice(&describe(&error));
            CommandError::failed(format!("outbox `{}`: {text}", self.outbox.name()))
        };
        change.await.map_err(failed)
    }

    /// A publisher of the outbox's stream, for reading it. An error is a text for people.
    pub(super) async fn publisher(&self) -> Result<JetStreamPublisher, Failure> {
        let stream = self.outbox.section.stream.event_stream()?;
        Ok(stream.publisher(self.client().await?))
    }

    /// A connection to NATS. An error is a text for people.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        let connecting = async {
            let options = servers::options(&self.outbox).await?;
            Ok::<_, Failure>(outbox::nats::connect(servers::of(&self.outbox)?, options).await?)
        };
        let connected = tokio::time::timeout(CONNECT_MAX.min(self.timeout), connecting).await;
        connected.map_err(|_| Failure::from("nats does not answer"))?
    }

    /// Whether the stream is there and takes messages. Nothing is published.
    pub(super) async fn broker(&self) -> BrokerCheck {
        let away = |error: String| BrokerCheck::Failed(format!("from here, nats cannot be asked: {error}"));
        let publisher = match self.publisher().await {
            Ok(publisher) => publisher,
            Err(error) => return away(error.to_string()),
        };
        match tokio::time::timeout(self.timeout, publisher.preflight()).await {
            Ok(Ok(warnings)) => BrokerCheck::Checked(warnings),
            Ok(Err(error)) => BrokerCheck::Failed(describe(&error)),
            Err(_) => away(format!("no answer within {:?}", self.timeout)),
        }
    }

    /// Says to people which outbox a command changes.
    pub(super) fn say_where(&self) {
        let section = &self.outbox.section;
        let scheme = self
            .outbox
            .database_url
            .expose()
            .split(':')
            .next()
            .unwrap_or_default();
        let schema = section.schema.as_ref().map(|schema| format!("{schema}."));
        say(&format!(
            "outbox `{}`: {scheme}, table {}{}outbox_messages -> stream {}",
            self.outbox.name(),
            schema.unwrap_or_default(),
            section.prefix,
            section.stream.name
        ));
    }

    /// The events whose payloads may be shown: those that are linked into the program, and those that the file names.
    pub(super) fn shown(&self) -> SensitiveFields {
        let mut fields = SensitiveFields::linked();
        for event in &self.outbox.section.events {
            let sensitive: Vec<&str> = event.sensitive.iter().map(String::as_str).collect();
            fields = fields.with_event(&event.event_type, event.version, &sensitive);
        }
        fields
    }
}

/// The outboxes of the configuration, or the one that is named.
fn chosen(arguments: &PlaceArguments) -> Result<Vec<Outbox>, CommandError> {
    let config = Config::load(arguments.config.as_deref(), &Environment::of_process())
        .map_err(CommandError::configuration)?;
    let Some(name) = &arguments.outbox else {
        return Ok(config.outboxes);
    };
    let names: Vec<String> = config
        .outboxes
        .iter()
        .map(|outbox| outbox.name().to_owned())
        .collect();
    let named: Vec<Outbox> = config
        .outboxes
        .into_iter()
        .filter(|outbox| outbox.name() == name)
        .collect();
    if named.is_empty() {
        let names = names.join("`, `");
        return Err(CommandError::configuration(format!(
            "there is no outbox `{}`; the file has `{names}`",
            name.escape_debug()
        )));
    }
    Ok(named)
}

/// The three databases say in these words that a table is missing.
fn with_advice(error: &str) -> String {
    if error.contains("run `outbox migrate`") {
        return error.to_owned();
    }
    let is_missing = ["does not exist", "doesn't exist", "no such table"]
        .iter()
        .any(|words| error.contains(words));
    if is_missing && error.contains("inbox_operations") {
        return format!(
            "{error}; make the table, without which no change is made: outbox migrate --tables inbox --yes"
        );
    }
    if is_missing && error.contains("inbox_") {
        return format!(
            "{error}; the tables of inboxes are in the databases of their services: give the file an outbox with that database, `schema` and `prefix`"
        );
    }
    if is_missing {
        return format!(
            "{error}; correct `schema` and `prefix`, or let the relay make the tables with `migrate = true`"
        );
    }
    error.to_owned()
}
