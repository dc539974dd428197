//! The commands of operators in a program of a shop's own: `mounted outbox show <id> --payload` shows what the shop has recorded.
//!
//! What it has before the program `outbox`: the events that are linked into it are known, so their payloads are shown, with their sensitive fields masked, and no file
//! has to list them.

use std::process::ExitCode;

use clap::Parser;
use outbox::prelude::*;
use outbox_cli::OutboxCommand;
use serde::{Deserialize, Serialize};

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
    Outbox(OutboxCommand),
}

#[tokio::main]
async fn main() -> ExitCode {
    let Shop::Outbox(command) = Shop::parse();
    outbox_cli::exit_code(command.run().await)
}
