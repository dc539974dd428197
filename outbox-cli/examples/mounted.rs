//! The commands of operators and the dashboard in a program of a shop's own: `mounted outbox show <id> --payload` shows what the shop has recorded, and `mounted pages` has the
//! dashboard at `/outbox` of the shop's own application.
//!
//! What it has before the program `outbox`: the events that are linked into it are known, so their payloads are shown, with their sensitive fields masked, and no file
//! has to list them.

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
    // A login of the shop's own would name the user.
    let dashboard = dashboard.layer(Extension(Access::new("somebody")));
    let shop = Router::new()
        .route("/", get(async || "the shop"))
        .nest("/outbox", dashboard);
    match serve(command.address, shop).await {
        Ok(()) => Ok(Outcome::Well),
        Err(error) => Err(CommandError::failed(error)),
    }
}
