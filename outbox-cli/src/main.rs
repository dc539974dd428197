//! The program `outbox`. All it does is in the library.

use std::process::ExitCode;

use clap::Parser as _;
use outbox_cli::Program;

#[tokio::main]
async fn main() -> ExitCode {
    outbox_cli::exit_code(Program::parse().run().await)
}
