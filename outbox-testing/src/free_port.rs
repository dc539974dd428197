//! Ports for test servers that start or restart later.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::process;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Port range below Linux's ephemeral range, so that outgoing connections never use these ports.
const PORTS: Range<u16> = 15_000..32_000;

/// Number of ports in a block. A listener on the first port reserves the block.
const BLOCK: u16 = 50;

const ANSWER_MAX: Duration = Duration::from_secs(1);

const BLOCKS: u16 = (PORTS.end - PORTS.start) / BLOCK;

/// A free port of 127.0.0.1. No other call, process or outgoing connection takes it while this
/// process lives.
///
/// # Panics
///
/// Panics if every port is taken.
#[must_use]
pub fn free_port() -> u16 {
    static OURS: Mutex<Ports> = Mutex::new(Ports::new());
    OURS.lock().unwrap_or_else(PoisonError::into_inner).next()
}

struct Ports {
    blocks: Vec<TcpListener>,
    left: Range<u16>,
}

impl Ports {
    const fn new() -> Self {
        Self {
            blocks: Vec::new(),
            left: 0..0,
        }
    }

    fn next(&mut self) -> u16 {
        loop {
            if let Some(port) = self.left.find(|port| !is_listened_on(*port)) {
                return port;
            }
            let (first, block) = free_block().expect("a free block of ports between 15000 and 32000");
            self.left = first + 1..first + BLOCK;
            self.blocks.push(block);
        }
    }
}

fn free_block() -> Option<(u16, TcpListener)> {
    let begin = process::id() % u32::from(BLOCKS);
    let begin = u16::try_from(begin).expect("less than the number of blocks");
    (0..BLOCKS)
        .map(|nth| PORTS.start + (begin + nth) % BLOCKS * BLOCK)
        .find_map(|first| Some((first, TcpListener::bind((Ipv4Addr::LOCALHOST, first)).ok()?)))
}

/// Tests the port by connecting. A bound listener would be inherited by a concurrently spawned
/// process, which would briefly keep the port.
fn is_listened_on(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let refused = TcpStream::connect_timeout(&address, ANSWER_MAX)
        .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
    !refused
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn ports_are_free_and_differ() {
        let (one, other) = (free_port(), free_port());
        assert_ne!(one, other);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, one)).unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), one);
    }

    #[test]
    fn ports_stay_free_while_threads_spawn_processes() {
        thread::scope(|scope| {
            let starts = scope.spawn(|| {
                for _ in 0..100 {
                    Command::new("true").current_dir("/").status().unwrap();
                }
            });
            while !starts.is_finished() {
                let mut ports = Ports::new();
                TcpListener::bind((Ipv4Addr::LOCALHOST, ports.next())).unwrap();
            }
        });
    }

    #[test]
    fn two_processes_never_name_the_same_port() {
        let (mut one, mut other) = (Ports::new(), Ports::new());
        let named: Vec<u16> = (0..2 * BLOCK).flat_map(|_| [one.next(), other.next()]).collect();
        assert_eq!(named.iter().collect::<HashSet<_>>().len(), named.len());
    }
}
