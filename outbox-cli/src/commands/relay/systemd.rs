//! Notifies systemd (`Type=notify`, `WatchdogSec=`) over the socket in `NOTIFY_SOCKET`; does
//! nothing without it.

use std::time::Duration;

use crate::config::Environment;

#[derive(Debug, Clone, Default)]
pub(super) struct Systemd {
    /// Socket path, or `@` and an abstract socket name.
    #[cfg_attr(not(unix), expect(dead_code, reason = "systemd needs Unix"))]
    socket: Option<String>,
    watchdog: Option<Duration>,
}

impl Systemd {
    pub(super) fn new(environment: &Environment) -> Self {
        // The variables may be inherited, so `WATCHDOG_PID` may name another process.
        let is_ours = environment
            .get("WATCHDOG_PID")
            .is_none_or(|pid| pid == std::process::id().to_string());
        let watchdog = environment.get("WATCHDOG_USEC").filter(|_| is_ours);
        Self {
            socket: environment.get("NOTIFY_SOCKET").map(str::to_owned),
            watchdog: watchdog
                .and_then(|text| text.parse().ok())
                .map(Duration::from_micros)
                .filter(|period| !period.is_zero()),
        }
    }

    pub(super) fn watchdog_period(&self) -> Option<Duration> {
        self.watchdog.map(|watchdog| watchdog / 3)
    }

    pub(super) fn tell(&self, state: &str) {
        if let Err(error) = self.try_tell(state) {
            tracing::warn!(%error, state, "systemd cannot be notified");
        }
    }

    #[cfg(unix)]
    fn try_tell(&self, state: &str) -> std::io::Result<()> {
        use std::os::unix::net::{SocketAddr, UnixDatagram};

        let Some(name) = &self.socket else {
            return Ok(());
        };
        let address = match name.strip_prefix('@') {
            #[cfg(target_os = "linux")]
            Some(name) => {
                use std::os::linux::net::SocketAddrExt as _;
                SocketAddr::from_abstract_name(name)?
            }
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A full socket queue must not block the program.
        socket.set_nonblocking(true)?;
        socket.send_to_addr(state.as_bytes(), &address)?;
        Ok(())
    }

    #[cfg(not(unix))]
    fn try_tell(&self, _: &str) -> std::io::Result<()> {
        Ok(())
    }
}
