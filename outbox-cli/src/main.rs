//! The program `outbox`. All it does is in the library.

use std::process::ExitCode;

use clap::Parser as _;
use outbox_cli::Program;

/// For the static program: musl's allocator has one lock for all threads, and a relay makes texts in one and frees them in another.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    outbox_cli::exit_code(Program::parse().run().await)
}
