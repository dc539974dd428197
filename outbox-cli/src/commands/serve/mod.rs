//! `outbox serve`: the dashboard of an outbox, for people with a browser.
//!
//! Invariants: without a login it is reached from this machine only. What pages read goes through sessions that cannot write; only a change has another one.

mod login;
mod source;
mod users;

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use clap::{Args, ValueEnum};
use outbox::core::shutdown;
use outbox::inbox::{DeadLetters, InboxOperations};
use outbox_admin::web::{Colour, Dashboard, Role, TraceLink, TraceLinkError};
use tokio::net::TcpListener;

use super::arguments::{EXIT_CODES, PlaceArguments, parse_bytes, parse_timeout};
use super::http_server::{self, Bounds};
use super::place::{Place, configured};
use super::relay::logging;
use crate::config::Environment;
use crate::failure::{CommandError, Outcome};
use crate::hint;
use crate::output::{self, Format, say};
use login::Login;
use source::Stream;
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
    /// The configuration file of the relay program; without it all settings have their defaults, and the environment says where the servers are.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The context, by its name among those of `outbox contexts`. Default: OUTBOX_CONTEXT, unless there is `--config`. Pages ask for no number in production.
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub context: Option<String>,
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
    /// Make no changes, whoever asks.
    #[arg(long)]
    pub read_only: bool,
    /// The path under which a proxy shows it, if the proxy takes that path off the requests.
    #[arg(long, value_name = "PATH", default_value = "")]
    pub base: String,
    /// The address of traces, with `{trace_id}` where the id of a trace belongs, such as `https://traces.example.org/trace/{trace_id}`. Messages link to it.
    #[arg(long, value_name = "ADDRESS", value_parser = parse_trace_link)]
    pub trace_url: Option<TraceLink>,
    /// Room for the temporary files (TMPDIR) of a proof, such as `4GiB`: about 80 bytes for each row and each place on the stream, at times twice. A proof that needs
    /// more ends and says so; `outbox prove` has no such bound.
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = parse_bytes)]
    pub proof_disk: u64,
    /// The colour beside the name of the outbox on each page, so that nobody takes one for another.
    #[arg(long, value_enum, default_value_t)]
    pub colour: ColourArgument,
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

/// The colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, ValueEnum)]
#[non_exhaustive]
pub enum ColourArgument {
    /// The default.
    #[default]
    Blue,
    /// For example for tests.
    Green,
    /// For example for a rehearsal.
    Amber,
    /// For example for production.
    Red,
    /// Free for anything.
    Violet,
    /// Free for anything.
    Grey,
}

impl From<ColourArgument> for Colour {
    fn from(colour: ColourArgument) -> Self {
        match colour {
            ColourArgument::Blue => Self::Blue,
            ColourArgument::Green => Self::Green,
            ColourArgument::Amber => Self::Amber,
            ColourArgument::Red => Self::Red,
            ColourArgument::Violet => Self::Violet,
            ColourArgument::Grey => Self::Grey,
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
        let (config, _) = configured(&self.arguments()).map_err(CommandError::configuration)?;
        let filter = logging::filter(&config.log, &environment).map_err(CommandError::configuration)?;
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
    /// [`CommandError::Configuration`]: the configuration is wrong, for example several outboxes without `outbox`. The database and NATS are connected to when a page first
    /// asks for them.
    ///
    /// # Cancellation
    ///
    /// Nothing is left behind.
    pub async fn dashboard(&self) -> Result<Dashboard, CommandError> {
        let arguments = self.arguments();
        let place = Place::open_to_write(&arguments).await?;
        let reading = place.reading(READERS).await?;
        let mut others = Vec::new();
        for other in Place::open_all(&PlaceArguments {
            outbox: None,
            ..arguments
        })
        .await?
        {
            if other.has_stream_of(&place) {
                others.push(other.reading(1).await?);
            }
        }
        self.of_places(&place, reading, others)
    }

    fn arguments(&self) -> PlaceArguments {
        PlaceArguments {
            config: self.config.clone(),
            context: self.context.clone(),
            outbox: self.outbox.clone(),
            timeout: self.timeout,
            output: Format::default(),
            quiet: true,
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

    fn of_places(
        &self,
        place: &Place,
        reading: Place,
        others: Vec<Place>,
    ) -> Result<Dashboard, CommandError> {
        let names = place.outbox.table_names().map_err(CommandError::configuration)?;
        let connection = reading.store.connection().clone();
        let letters = DeadLetters::new(connection.clone()).with_names(names.clone());
        let operations = InboxOperations::new(connection).with_names(names.clone());
        let mut dashboard = Dashboard::new(place.outbox.name(), reading.store.clone())
            .with_dead_letters(letters)
            .with_inbox_operations(operations)
            .with_program(hint::name())
            .with_shown(place.shown())
            .with_timeout(self.timeout)
            .with_base(&self.base)
            .with_colour(self.colour.into())
            .with_stream(Stream::new(reading, others, self.proof_disk));
        if let Some(traces) = &self.trace_url {
            dashboard = dashboard.with_traces(traces.clone());
        }
        if !self.read_only {
            let letters = DeadLetters::new(place.store.connection().clone()).with_names(names);
            dashboard = dashboard
                .with_changes(place.store.clone())
                .with_dead_letter_changes(letters);
        }
        Ok(dashboard)
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
        say(&format!("the dashboard is on http://{address}{}", self.base));
        let stop = shutdown::on_signals();
        tokio::select! {
            () = http_server::serve(listener, router, BOUNDS, stop.clone()) => {}
            // A page that is open keeps its connection, and would keep the program.
            () = async { stop.cancelled().await; tokio::time::sleep(LINGER).await } => {}
        }
        Ok(Outcome::Well)
    }
}

fn parse_trace_link(address: &str) -> Result<TraceLink, TraceLinkError> {
    TraceLink::new(address)
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
