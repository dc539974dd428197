//! Operator commands and dashboard inside another program: `mounted outbox show <id> --payload`,
//! and `mounted pages` with the dashboard at `/outbox`.
//!
//! Unlike the program `outbox`, it has the events linked in, so payloads are shown with
//! sensitive fields masked, without a list in a file.

use std::net::SocketAddr;
use std::process::ExitCode;

use axum::routing::get;
use axum::{Extension, Router};
use clap::Parser;
use outbox::prelude::*;
use outbox_admin::web::Access;
use outbox_cli::commands::serve::ServeCommand;
use outbox_cli::{CommandError, OutboxCommand, Outcome};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// An order was placed.
#[derive(Debug, DomainEvent, Serialize, Deserialize)]
#[domain_event(aggregate = "order", name = "placed")]
struct OrderPlaced {
    #[domain_event(aggregate_id)]
    order_id: String,
    #[domain_event(sensitive)]
    email: String,
}

/// The shop.
#[derive(Debug, Parser)]
enum Shop {
    /// The outbox of the shop.
    #[command(subcommand)]
    Outbox(Box<OutboxCommand>),
    /// The pages of the shop.
    Pages(ServeCommand),
}

#[tokio::main]
async fn main() -> ExitCode {
    outbox_cli::called_as("mounted outbox");
    outbox_cli::exit_code(match Shop::parse() {
        Shop::Outbox(command) => command.run().await,
        Shop::Pages(command) => pages(&command).await,
    })
}

async fn serve(address: SocketAddr, router: Router) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    eprintln!("the dashboard is on http://{}/outbox", listener.local_addr()?);
    axum::serve(listener, router).await
}

async fn pages(command: &ServeCommand) -> Result<Outcome, CommandError> {
    if !command.address.ip().is_loopback() {
        let why = "the pages of the shop have no login: `--address` has to be of this machine only";
        return Err(CommandError::configuration(why));
    }
    let dashboard = command.dashboard().await?.router();
    // A real login would name the user.
    let dashboard = dashboard.layer(Extension(Access::new("somebody")));
    let shop = Router::new()
        .route("/", get(async || "the shop"))
        .nest("/outbox", dashboard);
    match serve(command.address, shop).await {
        Ok(()) => Ok(Outcome::Well),
        Err(error) => Err(CommandError::failed(error)),
    }
}
