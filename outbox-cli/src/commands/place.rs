//! Opens a configured outbox for an operator.
//!
//! Invariant: every read has a timeout, and no error shows a server address. Opening creates no
//! table and no stream.

use std::time::Duration;

use crate::admin::rights::Role;
use outbox::Failure;
use outbox::core::SensitiveFields;
use outbox::nats::async_nats::{Client, Event};
use outbox::nats::{JetStreamPublisher, connect_with_events};
use outbox::sea_orm::SqlStore;
use url::Url;

use super::advice::{Advice, Login, advise};
use super::arguments::{FileArguments, PlaceArguments};
use super::servers;
use super::sessions::{self, Sessions};
use crate::config::Outbox;
use crate::failure::CommandError;
use crate::output::say;

const CONNECT_MAX: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(super) struct Place {
    pub(super) outbox: Outbox,
    pub(super) store: SqlStore,
    pub(super) timeout: Duration,
    is_production: bool,
    role: Role,
}

impl Place {
    pub(super) async fn open(arguments: &PlaceArguments) -> Result<Self, CommandError> {
        Self::open_for(arguments, Sessions::Reading).await
    }

    pub(super) async fn open_to_make(arguments: &PlaceArguments) -> Result<Self, CommandError> {
        Self::open_for(arguments, Sessions::Making).await
    }

    async fn open_for(arguments: &PlaceArguments, sessions: Sessions) -> Result<Self, CommandError> {
        let (config, outbox) = arguments.file.load_one()?;
        Self::connect(outbox, arguments.timeout, config.production, sessions, 1).await
    }

    pub(super) async fn open_to_change(arguments: &PlaceArguments) -> Result<Self, CommandError> {
        Ok(Self::open_for(arguments, Sessions::Writing).await?.for_change())
    }

    pub(super) fn for_change(mut self) -> Self {
        self.role = Role::Operator;
        self.say_where();
        self
    }

    pub(super) fn is_production(&self) -> bool {
        self.is_production
    }

    /// Opens the named outbox, or all outboxes of the file.
    pub(super) async fn open_all(
        arguments: &PlaceArguments,
        sessions: Sessions,
    ) -> Result<Vec<Self>, CommandError> {
        Self::connect_all(&arguments.file, arguments.timeout, sessions).await
    }

    /// Opens all outboxes of the file on the same stream, regardless of `--outbox`.
    pub(super) async fn open_all_with_stream_of(
        place: &Self,
        file: &FileArguments,
    ) -> Result<Vec<Self>, CommandError> {
        let file = FileArguments {
            outbox: None,
            ..file.clone()
        };
        let mut places = Self::connect_all(&file, place.timeout, Sessions::Reading).await?;
        places.retain(|other| other.has_stream_of(place));
        Ok(places)
    }

    async fn connect_all(
        file: &FileArguments,
        timeout: Duration,
        sessions: Sessions,
    ) -> Result<Vec<Self>, CommandError> {
        let (mut places, config) = (Vec::new(), file.load()?);
        for outbox in config.outboxes {
            places.push(Self::connect(outbox, timeout, config.production, sessions, 1).await?);
        }
        Ok(places)
    }

    pub(super) async fn connect(
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

    pub(super) fn explain(&self, error: &(dyn std::error::Error + 'static)) -> String {
        self.advice(error).to_string()
    }

    pub(super) fn advice(&self, error: &(dyn std::error::Error + 'static)) -> Advice {
        let login = Login {
            outbox: &self.outbox,
            backend: self.store.connection().get_database_backend(),
            role: self.role,
        };
        advise(error, &login)
    }

    /// Bounds a query by the timeout and names the outbox in errors.
    pub(super) async fn ask<T, E: std::error::Error + 'static>(
        &self,
        question: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CommandError> {
        match tokio::time::timeout(self.timeout, question).await {
            Ok(answer) => answer.map_err(|error| self.failed(&error)),
            Err(_) => Err(CommandError::failed(format!(
                "outbox `{}`: the database has not answered within {:?}; a change may still be made; `--timeout` waits longer",
                self.outbox.name(),
                self.timeout
            ))),
        }
    }

    /// Runs a change without a timeout, because an aborted change would have to start again.
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

    pub(super) async fn publisher(&self) -> Result<JetStreamPublisher, Failure> {
        self.publisher_telling(|_| {}).await
    }

    pub(super) async fn publisher_telling(
        &self,
        on_event: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<JetStreamPublisher, Failure> {
        let stream = self.outbox.section.stream.event_stream()?;
        let publisher = stream.publisher(self.client_telling(on_event).await?);
        Ok(publisher.with_config(self.outbox.publisher_config()))
    }

    pub(super) async fn client(&self) -> Result<Client, Failure> {
        self.client_telling(|_| {}).await
    }

    async fn client_telling(
        &self,
        on_event: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<Client, Failure> {
        let connecting = async {
            let options = servers::options(&self.outbox).await?;
            let servers = self.outbox.nats_url.expose();
            Ok::<_, Failure>(connect_with_events(servers, options, on_event).await?)
        };
        let connected = tokio::time::timeout(CONNECT_MAX.min(self.timeout), connecting).await;
        connected.map_err(|_| Failure::from("nats does not answer"))?
    }

    fn has_stream_of(&self, other: &Self) -> bool {
        let stream = |place: &Self| place.outbox.section.stream.name.clone();
        self.outbox.nats_url == other.outbox.nats_url && stream(self) == stream(other)
    }

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

    pub(super) fn shown(&self) -> SensitiveFields {
        let mut fields = SensitiveFields::linked();
        for event in &self.outbox.section.events {
            let sensitive: Vec<&str> = event.sensitive.iter().map(String::as_str).collect();
            fields = fields.with_event(&event.event_type, event.version, &sensitive);
        }
        fields
    }
}

/// Host and database of an address, without user, password and options. `None` for files and
/// other forms.
fn without_login(address: &str) -> Option<String> {
    let address = Url::parse(address).ok()?;
    let host = address.host_str()?;
    let port = address.port().map(|port| format!(":{port}"));
    (address.scheme() != "sqlite").then(|| format!("{host}{}{}", port.unwrap_or_default(), address.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_names_omit_user_password_and_options() {
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
