//! Logs of a run: one file per program, so that the outputs do not mix.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use crate::failure::{Doing, Failure};

/// Appends the log to `<folder>/<name>.log` from now on. `RUST_LOG` filters it; the default is `info` and above.
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
