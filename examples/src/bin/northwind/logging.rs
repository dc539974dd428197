//! Logs of a run: one file per program, because their standard outputs would mix.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use crate::failure::{Doing, Failure};

/// Appends to `<folder>/<name>.log` from here on. `RUST_LOG` chooses what; by default everything from `info` upwards.
pub(crate) fn to_file(folder: &Path, name: &str) -> Result<(), Failure> {
    let path = folder.join(format!("{name}.log"));
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.or_cannot(format_args!("write {}", path.display()))?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_ansi(false)
        .with_env_filter(filter)
        .with_writer(Mutex::new(file))
        .init();
    Ok(())
}
