//! An outbox of the configuration, opened for an operator.
//!
//! Invariants: each answer is waited for within a bound. No error shows an address. Nothing is made or changed here: neither a table nor a stream.

use std::time::Duration;

use outbox::Failure;
use outbox::core::{Publisher as _, SensitiveFields, describe};
use outbox::nats::async_nats::{Client, Event};
use outbox::nats::{JetStreamPublisher, connect_with_events};
use outbox::sea_orm::SqlStore;
use outbox_admin::BrokerCheck;
use outbox_admin::rights::Role;
use url::Url;

use super::advice::{Advice, Login, advise};
use super::arguments::PlaceArguments;
use super::servers;
use super::sessions::{self, Sessions};
use crate::config::{Config, ConfigError, Environment, Outbox};
use crate::failure::CommandError;
use crate::invocation;
use crate::output::say;

/// Longest wait for a connection to NATS.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// An outbox and its store. NATS is connected to when it is needed.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) outbox: Outbox,
    pub(super) store: SqlStore,
    pub(super) timeout: Duration,
    is_production: bool,
    /// Whose rights the command needs.
    role: Role,
}

impl Place {
    /// Opens the outbox that the arguments name, or the only one, for a command that only reads: its session cannot write, and its statements end by themselves.
    pub(super) async fn open(arguments: &PlaceArguments) -> Result<Self, CommandError> {
        Self::open_for(arguments, Sessions::Reading).await
    }

    /// The same for the command that makes the tables, which may make a file of SQLite for them.
    pub(super) async fn open_to_make(arguments: &PlaceArguments) -> Result<Self, CommandError> {
        Self::open_for(arguments, Sessions::Making).await
    }

    async fn open_for(arguments: &PlaceArguments, sessions: Sessions) -> Result<Self, CommandError> {
        let (mut outboxes, is_production) = chosen(arguments)?;
        let (Some(outbox), true) = (outboxes.pop(), outboxes.is_empty()) else {
            return Err(CommandError::configuration(
                "the file has several outboxes; choose one with `--outbox NAME`",
            ));
        };
        Self::connect(outbox, arguments.timeout, is_production, sessions, 1).await
    }

    /// Opens the outbox that the arguments name, or the only one, for a command that may change it, as [`Self::for_change`] has it.
    pub(super) async fn open_to_change(arguments: &PlaceArguments) -> Result<Self, CommandError> {
        Ok(Self::open_for(arguments, Sessions::Writing).await?.for_change())
    }

    /// Says which outbox may be changed.
    pub(super) fn for_change(mut self) -> Self {
        self.role = Role::Operator;
        self.say_where();
        self
    }

    pub(super) fn is_production(&self) -> bool {
        self.is_production
    }

    /// Opens the outbox that the arguments name, or all, as [`Self::open`] does.
    pub(super) async fn open_all(arguments: &PlaceArguments) -> Result<Vec<Self>, CommandError> {
        Self::open_all_for(arguments, Sessions::Reading).await
    }

    /// The outboxes of the file, whichever of them the arguments name, that have the stream of this one.
    pub(super) async fn open_all_with_stream_of(
        place: &Self,
        arguments: &PlaceArguments,
    ) -> Result<Vec<Self>, CommandError> {
        let mut arguments = arguments.clone();
        arguments.outbox = None;
        let mut places = Self::open_all(&arguments).await?;
        places.retain(|other| other.has_stream_of(place));
        Ok(places)
    }

    /// The same over ordinary sessions, for an examination of what relays meet there.
    pub(super) async fn open_all_to_examine(arguments: &PlaceArguments) -> Result<Vec<Self>, CommandError> {
        Self::open_all_for(arguments, Sessions::Writing).await
    }

    async fn open_all_for(arguments: &PlaceArguments, sessions: Sessions) -> Result<Vec<Self>, CommandError> {
        let mut places = Vec::new();
        let (outboxes, is_production) = chosen(arguments)?;
        for outbox in outboxes {
            places.push(Self::connect(outbox, arguments.timeout, is_production, sessions, 1).await?);
        }
        Ok(places)
    }

    /// The same outbox over sessions that cannot write, and whose statements end by themselves. They are opened when they are needed.
    pub(super) async fn reading(&self, sessions: u32) -> Result<Self, CommandError> {
        let outbox = self.outbox.clone();
        Self::connect(
            outbox,
            self.timeout,
            self.is_production,
            Sessions::Reading,
            sessions,
        )
        .await
    }

    /// Asks neither a server nor a file: the first question does, and gets the error if there is one.
    async fn connect(
        outbox: Outbox,
        timeout: Duration,
        is_production: bool,
        sessions: Sessions,
        most: u32,
    ) -> Result<Self, CommandError> {
        let db = sessions::open(outbox.database_url.expose(), sessions, most, timeout).await;
        let db = db.map_err(CommandError::configuration)?;
        let names = outbox.table_names().map_err(CommandError::configuration)?;
        let store = SqlStore::new(db)
            .with_names(&names)
            .map_err(CommandError::configuration)?
            .allow_untested_engine(outbox.section.allow_untested_engine);
        Ok(Self {
            outbox,
            store,
            timeout,
            is_production,
            role: Role::Viewer,
        })
    }

    /// The error that people are shown for an error of the database, with the command that mends it.
    pub(super) fn explain(&self, error: &(dyn std::error::Error + 'static)) -> String {
        self.advice(error).to_string()
    }

    /// The same as a value, for whoever tells errors apart.
    pub(super) fn advice(&self, error: &(dyn std::error::Error + 'static)) -> Advice {
        let login = Login {
            outbox: &self.outbox,
            backend: self.store.connection().get_database_backend(),
            role: self.role,
        };
        advise(error, &login)
    }

    /// Waits for an answer of the database within the bound, and says which outbox failed.
    pub(super) async fn ask<T, E: std::error::Error + 'static>(
        &self,
        question: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CommandError> {
        match tokio::time::timeout(self.timeout, question).await {
            Ok(answer) => answer.map_err(|error| self.failed(&error)),
            Err(_) => Err(CommandError::failed(format!(
                "outbox `{}`: the database has not answered within {:?}; a change may still take effect; `--timeout` waits longer",
                self.outbox.name(),
                self.timeout
            ))),
        }
    }

    /// Waits for a change of any number of rows, without a bound: ended half-way, it would have to be repeated from its beginning.
    pub(super) async fn carry_out<T, E: std::error::Error + 'static>(
        &self,
        change: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CommandError> {
        change.await.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &(dyn std::error::Error + 'static)) -> CommandError {
        let advice = self.advice(error);
        let text = format!("outbox `{}`: {}", self.outbox.name(), advice.sentence());
        CommandError::failed(text).with_next(advice.next.command)
    }

    /// A publisher of the outbox's stream, for reading it. An error is a text for people.
    pub(super) async fn publisher(&self) -> Result<JetStreamPublisher, Failure> {
        self.publisher_telling(|_| {}).await
    }

    /// The same, which tells what happens to its connections.
    pub(super) async fn publisher_telling(
        &self,
        on_event: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<JetStreamPublisher, Failure> {
        let stream = self.outbox.section.stream.event_stream()?;
        let publisher = stream.publisher(self.client_telling(on_event).await?);
        Ok(publisher.with_config(self.outbox.publisher_config()))
    }

    /// A connection to NATS. An error is a text for people.
    pub(super) async fn client(&self) -> Result<Client, Failure> {
        self.client_telling(|_| {}).await
    }

    async fn client_telling(
        &self,
        on_event: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<Client, Failure> {
        let connecting = async {
            let options = servers::options(&self.outbox).await?;
            let servers = servers::of(&self.outbox)?;
            Ok::<_, Failure>(connect_with_events(servers, options, on_event).await?)
        };
        let connected = tokio::time::timeout(CONNECT_MAX.min(self.timeout), connecting).await;
        connected.map_err(|_| Failure::from("nats does not answer"))?
    }

    /// Whether this outbox and another one have the same stream.
    fn has_stream_of(&self, other: &Self) -> bool {
        let stream = |place: &Self| place.outbox.section.stream.name.clone();
        self.outbox.nats_url == other.outbox.nats_url && stream(self) == stream(other)
    }

    /// Whether the stream is there and takes messages. Nothing is published.
    pub(super) async fn broker(&self) -> BrokerCheck {
        self.broker_by(self.publisher().await).await
    }

    /// The same by a publisher that is there, or by the reason why there is none.
    pub(super) async fn broker_by(&self, publisher: Result<JetStreamPublisher, Failure>) -> BrokerCheck {
        let away = |error: String| BrokerCheck::Failed(format!("from here, nats cannot be asked: {error}"));
        let publisher = match publisher {
            Ok(publisher) => publisher,
            Err(error) => return away(error.to_string()),
        };
        match tokio::time::timeout(self.timeout, publisher.preflight()).await {
            Ok(Ok(warnings)) => BrokerCheck::Checked(warnings),
            Ok(Err(error)) => BrokerCheck::Failed(describe(&error)),
            Err(_) => away(format!("no answer within {:?}", self.timeout)),
        }
    }

    /// Says to people which outbox a command changes, without the login of its database.
    fn say_where(&self) {
        let section = &self.outbox.section;
        let scheme = self
            .outbox
            .database_url
            .expose()
            .split(':')
            .next()
            .unwrap_or_default();
        let schema = section.schema.as_ref().map(|schema| format!("{schema}."));
        let production = if self.is_production() { "production, " } else { "" };
        let at = without_login(self.outbox.database_url.expose());
        let at = at.map(|at| format!(" {at}")).unwrap_or_default();
        say(&format!(
            "{production}outbox `{}`: {scheme}{at}, table {}{}outbox_messages -> stream {}",
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

/// Host and database of an address, without user, password and options. `None` of an address of another form, and of a file.
fn without_login(address: &str) -> Option<String> {
    let address = Url::parse(address).ok()?;
    let host = address.host_str()?;
    let port = address.port().map(|port| format!(":{port}"));
    (address.scheme() != "sqlite").then(|| format!("{host}{}{}", port.unwrap_or_default(), address.path()))
}

/// The configuration that the command line or the environment names.
pub(super) fn configured(arguments: &PlaceArguments) -> Result<Config, ConfigError> {
    invocation::remember(arguments.config.as_deref(), arguments.outbox.as_deref());
    Config::load(arguments.config.as_deref(), &Environment::of_process())
}

/// The outboxes of the configuration, or the one that is named.
fn chosen(arguments: &PlaceArguments) -> Result<(Vec<Outbox>, bool), CommandError> {
    let config = configured(arguments).map_err(CommandError::configuration)?;
    let Some(name) = &arguments.outbox else {
        return Ok((config.outboxes, config.production));
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
    Ok((named, config.production))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_password_or_option_of_an_address_is_said() {
        let said = |address| without_login(address);
        assert_eq!(
            said("postgres://ada:s%40cret@pg-1:5433/shop?password=s"),
            Some("pg-1:5433/shop".to_owned())
        );
        assert_eq!(said("mysql://ada@db/shop"), Some("db/shop".to_owned()));
        for none in [
            "postgres:///shop?host=/run&password=s",
            "sqlite://shop.db?mode=rw",
            "s@cret",
        ] {
            assert_eq!(said(none), None, "{none}");
        }
    }
}
