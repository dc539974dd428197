//! Processor time of local processes, from Linux `/proc`.

use std::fs;

use sea_orm::DatabaseConnection;

use crate::Result;
use crate::servers::count;

/// Linux always reports hundredths of a second to user space.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    parent: u64,
    pub(crate) own: f64,
    ended: f64,
}

impl Times {
    pub(crate) fn of(process: u32) -> Result<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
        // The name may contain anything.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .collect();
        let field = |n: usize| fields.get(n).and_then(|field| field.parse::<u64>().ok());
        let read = || {
            let seconds = |first| Some((field(first)? + field(first + 1)?) as f64 / TICKS_PER_SECOND);
            Some(Self {
                parent: field(1)?,
                own: seconds(11)?,
                ended: seconds(13)?,
            })
        };
        read().ok_or_else(|| "/proc/PID/stat is shorter than known".into())
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Postmaster(u32);

impl Postmaster {
    /// `None` if the server is not local.
    pub(crate) async fn of(db: &DatabaseConnection) -> Result<Option<Self>> {
        let backend = u32::try_from(count(db, "SELECT pg_backend_pid()::int8 AS n").await?)?;
        let name = fs::read_to_string(format!("/proc/{backend}/comm")).unwrap_or_default();
        if name.trim() != "postgres" {
            return Ok(None);
        }
        Ok(Some(Self(u32::try_from(Times::of(backend)?.parent)?)))
    }

    /// Includes ended processes.
    pub(crate) fn seconds(self) -> Result<f64> {
        let server = Times::of(self.0)?;
        let mut seconds = server.own + server.ended;
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(process) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            // The server counts a process that ended meanwhile.
            if let Ok(times) = Times::of(process)
                && times.parent == u64::from(self.0)
            {
                seconds += times.own;
            }
        }
        Ok(seconds)
    }
}

pub(crate) async fn during<T>(
    server: Option<Postmaster>,
    work: impl Future<Output = Result<T>>,
) -> Result<(T, Option<f64>)> {
    let before = server.map(Postmaster::seconds).transpose()?;
    let done = work.await?;
    let after = server.map(Postmaster::seconds).transpose()?;
    Ok((done, after.zip(before).map(|(after, before)| after - before)))
}
