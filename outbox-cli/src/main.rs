//! The program `outbox`, implemented by the library.

use std::process::ExitCode;

use clap::Parser as _;
use outbox_cli::Program;

/// For static builds: musl's allocator has one global lock, and a relay allocates and frees on
/// different threads.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    outbox_cli::exit_code(Program::parse().run().await)
}
