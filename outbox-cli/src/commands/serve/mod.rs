//! `outbox serve`: the dashboard of an outbox, for people with a browser.
//!
//! Invariants: without a login it is reached from this machine only. What pages read goes through sessions that cannot write; only a change has another one.

mod login;
mod users;

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use clap::{Args, ValueEnum};
use outbox::core::shutdown;
use outbox::inbox::{DeadLetters, InboxOperations, PausedConsumers};
use outbox::sea_orm::SqlStore;
use outbox_admin::web::{Dashboard, Role};
use tokio::net::TcpListener;

use super::arguments::{EXIT_CODES, PlaceArguments, parse_timeout};
use super::http_server::{self, Bounds};
use super::place::{Place, configured};
use super::relay::logging;
use super::stream_view::Stream;
use crate::config::Environment;
use crate::failure::{CommandError, Outcome};
use crate::invocation;
use crate::output::{self, Format, say};
use login::Login;
use users::Users;

/// Sessions that pages read with.
const READERS: u32 = 4;

/// A browser opens up to six connections.
const BOUNDS: Bounds = Bounds {
    connections: 256,
    patience: Duration::from_secs(30),
};

/// How long open pages may hold up the end of the program.
const LINGER: Duration = Duration::from_secs(3);

/// Arguments of `outbox serve`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
#[non_exhaustive]
pub struct ServeCommand {
    /// The configuration file of the relay program. Without a file all settings have their defaults. Pages ask for no number in production.
    #[arg(long, value_name = "FILE", env = "OUTBOX_CONFIG")]
    pub config: Option<PathBuf>,
    /// The outbox, by its name in the file. Needed if the file has several.
    #[arg(long, value_name = "NAME")]
    pub outbox: Option<String>,
    /// How long an answer of the database or of NATS is waited for. A change is waited for until it ends.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_timeout)]
    pub timeout: Duration,
    /// Where it answers. Without `--users` it has to be an address of this machine only. Port 0 is any free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9188")]
    pub address: SocketAddr,
    /// Who may come in: a line `name:role:hash` each, as `--new-user` prints it. They log in by name and password.
    #[arg(long, value_name = "FILE")]
    pub users: Option<PathBuf>,
    /// The header in which a proxy names the user that it has logged in. The roles are those of `--users`; passwords there are not looked at.
    #[arg(long, value_name = "HEADER", requires = "users", requires = "proxy")]
    pub proxy_header: Option<String>,
    /// The address of that proxy. Requests of others are refused.
    #[arg(long, value_name = "IP", requires = "proxy_header")]
    pub proxy: Vec<IpAddr>,
    /// What somebody on this machine may do if there are no users.
    #[arg(long, value_enum, default_value_t, conflicts_with = "users")]
    pub role: RoleArgument,
    /// A further name of this machine by which a browser may call it, if there are no users.
    #[arg(long, value_name = "NAME", conflicts_with = "users")]
    pub host: Vec<String>,
    /// Print the line of a new user for the file, with the password from the standard input, and end.
    #[arg(long, value_name = "NAME:ROLE")]
    pub new_user: Option<String>,
}

/// The roles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum)]
#[non_exhaustive]
pub enum RoleArgument {
    /// Reads everything but payloads.
    #[default]
    Viewer,
    /// Also makes changes.
    Operator,
    /// Also sees payloads, with their sensitive fields masked.
    Admin,
}

impl From<RoleArgument> for Role {
    fn from(role: RoleArgument) -> Self {
        match role {
            RoleArgument::Viewer => Self::Viewer,
            RoleArgument::Operator => Self::Operator,
            RoleArgument::Admin => Self::Admin,
        }
    }
}

impl ServeCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        if let Some(user) = &self.new_user {
            return new_user(user);
        }
        let login = self.login()?;
        let environment = Environment::of_process();
        let config = configured(&self.arguments()).map_err(CommandError::configuration)?;
        let filter = logging::filter(&environment).map_err(CommandError::configuration)?;
        let dashboard = self.dashboard().await?;
        logging::start(&config.log, filter);
        let router = dashboard.router().layer(axum::middleware::from_fn_with_state(
            Arc::new(login),
            login::login,
        ));
        self.serve(router).await
    }

    /// The dashboard that `outbox serve` shows, for an axum application of one's own: what it asks of database and NATS is told it already. The application lets people in,
    /// and gives each request an [`Access`](outbox_admin::web::Access); without one a request is refused. So `address`, `users`, `role`, `host`, the proxy and `new_user` are not looked at.
    /// The commands that pages name are called `outbox`, unless the application says with [`Dashboard::with_program`] how it has mounted them.
    ///
    /// # Errors
    ///
    /// Exit code 2: the configuration is wrong, for example several outboxes without `outbox`. The database and NATS are connected to when a page first
    /// asks for them.
    ///
    /// # Cancellation
    ///
    /// Nothing is left behind.
    pub async fn dashboard(&self) -> Result<Dashboard<SqlStore>, CommandError> {
        let arguments = self.arguments();
        let place = Place::open_to_write(&arguments).await?;
        let reading = place.reading(READERS).await?;
        self.of_places(&place, reading)
    }

    fn arguments(&self) -> PlaceArguments {
        PlaceArguments {
            config: self.config.clone(),
            outbox: self.outbox.clone(),
            timeout: self.timeout,
            output: Format::default(),
        }
    }

    /// Who may come in.
    fn login(&self) -> Result<Login, CommandError> {
        let Some(path) = &self.users else {
            if !self.address.ip().is_loopback() {
                return Err(CommandError::configuration(format!(
                    "without `--users` the dashboard answers on this machine only, and {} is reached from others; name users, or choose 127.0.0.1",
                    self.address.ip()
                )));
            }
            return Ok(Login::local(self.role.into(), &self.host));
        };
        let users = Users::read(path).map_err(CommandError::configuration)?;
        match &self.proxy_header {
            Some(header) => {
                let login = Login::proxy(users, header, &self.proxy);
                login.map_err(CommandError::configuration)
            }
            None => Ok(Login::passwords(users)),
        }
    }

    fn of_places(&self, place: &Place, reading: Place) -> Result<Dashboard<SqlStore>, CommandError> {
        let names = place.outbox.table_names().map_err(CommandError::configuration)?;
        let connection = reading.store.connection().clone();
        let letters = DeadLetters::new(connection.clone()).with_names(names.clone());
        let operations = InboxOperations::new(connection).with_names(names.clone());
        let dashboard = Dashboard::new(place.outbox.name(), reading.store.clone())
            .with_dead_letters(letters)
            .with_inbox_operations(operations)
            .with_program(invocation::name())
            .with_shown(place.shown())
            .with_timeout(self.timeout)
            .with_stream(Stream::new(&reading, &self.arguments()));
        let db = place.store.connection();
        Ok(dashboard
            .with_changes(place.store.clone())
            .with_dead_letter_changes(DeadLetters::new(db.clone()).with_names(names.clone()))
            .with_consumer_changes(PausedConsumers::new(db.clone()).with_names(names)))
    }

    async fn serve(&self, router: Router) -> Result<Outcome, CommandError> {
        let failed = |error: std::io::Error| {
            CommandError::failed(format!(
                "the dashboard cannot be served on {}: {error}; choose another `--address`",
                self.address
            ))
        };
        let listener = TcpListener::bind(self.address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        say(&format!("the dashboard is on http://{address}"));
        let stop = shutdown::on_signals();
        tokio::select! {
            () = http_server::serve(listener, router, BOUNDS, stop.clone()) => {}
            // A page that is open keeps its connection, and would keep the program.
            () = async { stop.cancelled().await; tokio::time::sleep(LINGER).await } => {}
        }
        Ok(Outcome::Well)
    }
}

/// Prints the line of a user. The password is the first line of the standard input, so that no list of processes shows it.
fn new_user(user: &str) -> Result<Outcome, CommandError> {
    let mut password = String::new();
    std::io::stdin()
        .read_to_string(&mut password)
        .map_err(CommandError::failed)?;
    let password = password.lines().next().unwrap_or_default();
    let line = users::line(user, password).map_err(CommandError::configuration)?;
    output::write(&format!("{line}\n"))?;
    Ok(Outcome::Well)
}
