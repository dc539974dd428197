//! Ports for servers that a test starts, or starts again, later than it names them.

use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel gives these to nobody who asks for any port, which outgoing connections do. Linux begins at 32768.
const PORTS: std::ops::Range<u32> = 15_000..32_000;

/// A port of 127.0.0.1 that nobody listens on.
///
/// Two calls of one process return different ports, and two processes begin at different places. No outgoing connection
/// takes the port in the time until the test's server listens on it, or while that server is down.
///
/// # Panics
///
/// If every port is taken.
#[must_use]
pub fn free_port() -> u16 {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    // Neighbouring process ids are far apart here.
    let first = process::id().wrapping_mul(7_919);
    (0..PORTS.len())
        .map(|_| first.wrapping_add(CALLS.fetch_add(1, Ordering::Relaxed)))
        .filter_map(|number| u16::try_from(PORTS.start + number % (PORTS.end - PORTS.start)).ok())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("a free port between 15000 and 32000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_differ() {
        let (one, other) = (free_port(), free_port());
        assert_ne!(one, other);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, one)).unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), one);
    }
}
