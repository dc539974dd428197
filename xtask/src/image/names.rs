//! A name server that knows one address: each name is this machine's.
//!
//! It shows that a program asks name servers when its root has no other way to learn a name. It listens on port 53, which only root may.

use anyhow::{Context as _, Result};

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// An address of this machine that nothing else is likely to use.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 53, 53, 53);
/// The type of a question for an IPv4 address.
const A: [u8; 2] = [0, 1];

/// A running name server, as long as the process lives.
#[derive(Debug)]
pub(super) struct NameServer {
    asked: Arc<AtomicUsize>,
}

impl NameServer {
    pub(super) fn start() -> Result<Self> {
        let socket = UdpSocket::bind((ADDRESS, 53))
            .with_context(|| format!("no name server can listen on {ADDRESS}, port 53; what does?"))?;
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                if let Some(answer) = answer(&buffer[..length]) {
                    count.fetch_add(1, Ordering::Relaxed);
                    // Who is gone asks again.
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Ok(Self { asked })
    }

    /// The content of `/etc/resolv.conf` that leads to it.
    pub(super) fn resolver() -> String {
        format!("nameserver {ADDRESS}\n")
    }

    /// How many questions it has answered.
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

/// The answer to a question: 127.0.0.1 for an IPv4 address, and nothing for anything else.
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let mut end = HEADER;
    loop {
        let length = usize::from(*question.get(end)?);
        end += 1 + length;
        if length == 0 {
            break;
        }
    }
    let kind = question.get(end..end + 2)?;
    let asked = question.get(HEADER..end + 4)?;
    let answers = u8::from(kind == A);
    // The same id; an answer, by a server that looks further; one question, and so many answers.
    let mut answer = vec![question[0], question[1], 0x81, 0x80, 0, 1, 0, answers, 0, 0, 0, 0];
    answer.extend(asked);
    if answers == 1 {
        // The name of the question, an address, for a minute.
        answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_answered_and_nothing_else() {
        let question = |kind: u8| {
            [
                &b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\0\x02db\x04test\0\0"[..],
                &[kind, 0, 1],
            ]
            .concat()
        };
        let address = answer(&question(1)).unwrap();
        assert_eq!(address[..8], [0x12, 0x34, 0x81, 0x80, 0, 1, 0, 1]);
        assert!(address.ends_with(&[127, 0, 0, 1]));
        let none = answer(&question(28)).unwrap();
        assert_eq!(none[..8], [0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0]);
        assert!(none.ends_with(&[28, 0, 1]));
        assert_eq!(answer(b"\x12\x34"), None);
    }
}
