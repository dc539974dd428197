//! `outbox serve`: the dashboard of an outbox.
//!
//! Invariant: only the local machine can connect, so remote access needs a local proxy. Database
//! sessions are read-only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::web::Dashboard;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::HOST;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use clap::Args;
use outbox::core::shutdown;
use outbox::inbox::DeadLetters;
use outbox::sea_orm::SqlStore;
use tokio::net::TcpListener;

use super::arguments::{EXIT_CODES, FileArguments, parse_timeout};
use super::http_server::{self, Bounds};
use super::place::Place;
use super::relay::logging;
use super::sessions::Sessions;
use super::stream_view::Stream;
use crate::config::{Environment, Outbox};
use crate::failure::{CommandError, Outcome};
use crate::output::say;

const READERS: u32 = 4;

/// Connection limits: a browser opens up to six connections.
const BOUNDS: Bounds = Bounds {
    connections: 256,
    patience: Duration::from_secs(30),
};

const LINGER: Duration = Duration::from_secs(3);

/// Arguments of `outbox serve`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ServeCommand {
    /// The file.
    #[command(flatten)]
    pub file: FileArguments,
    /// Timeout of each answer of the database or NATS.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_timeout)]
    pub timeout: Duration,
    /// Listen address, on this machine only. Port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9188")]
    pub address: SocketAddr,
    /// Another accepted host name, such as the name of a proxy.
    #[arg(long, value_name = "NAME")]
    pub host: Vec<String>,
}

impl ServeCommand {
    pub(super) async fn run(self) -> Result<Outcome, CommandError> {
        if !self.address.ip().is_loopback() {
            return Err(CommandError::configuration(format!(
                "the dashboard has no login and serves this machine only, and {} is reachable from others; \
                 use 127.0.0.1 behind a proxy with a login",
                self.address.ip()
            )));
        }
        let environment = Environment::of_process();
        let (config, outbox) = self.file.load_one()?;
        let filter = logging::filter(&environment).map_err(CommandError::configuration)?;
        let dashboard = self.dashboard(outbox).await?;
        logging::start(&config.log, filter);
        let hosts: Arc<[String]> = self.host.clone().into();
        let router = dashboard.router();
        self.serve(router.layer(middleware::from_fn_with_state(hosts, let_in)))
            .await
    }

    async fn dashboard(&self, outbox: Outbox) -> Result<Dashboard<SqlStore>, CommandError> {
        let place = Place::connect(outbox, self.timeout, false, Sessions::Reading, READERS).await?;
        let names = place.outbox.table_names().map_err(CommandError::configuration)?;
        let letters = DeadLetters::new(place.store.connection().clone()).with_names(names);
        let mut dashboard = Dashboard::new(place.outbox.name(), place.store.clone());
        dashboard.letters = Some(letters);
        dashboard.timeout = self.timeout;
        dashboard.stream = Arc::new(Stream::new(&place, &self.file));
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
        say(&format!("the dashboard is on http://{address}"));
        let stop = shutdown::on_signals();
        tokio::select! {
            () = http_server::serve(listener, router, BOUNDS, stop.clone()) => {}
            // An open page keeps its connection, which would delay the program's exit.
            () = async { stop.cancelled().await; tokio::time::sleep(LINGER).await } => {}
        }
        Ok(Outcome::Done)
    }
}

/// Rejects unknown host names against DNS rebinding: a foreign site could resolve its own name
/// to this machine.
async fn let_in(State(hosts): State<Arc<[String]>>, request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = host.map(without_port).unwrap_or_default();
    let local = ["localhost", "127.0.0.1", "[::1]"];
    let mut known = local.into_iter().chain(hosts.iter().map(String::as_str));
    if !known.any(|known| known.eq_ignore_ascii_case(host)) {
        let why = "unknown host name; use localhost, or start with `--host NAME`\n";
        return (StatusCode::MISDIRECTED_REQUEST, why).into_response();
    }
    next.run(request).await
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_known_with_and_without_its_port() {
        for (host, expected) in [
            ("localhost", "localhost"),
            ("localhost:9188", "localhost"),
            ("[::1]:9188", "[::1]"),
            ("[::1]", "[::1]"),
            ("evil.example:80", "evil.example"),
        ] {
            assert_eq!(without_port(host), expected);
        }
    }
}
