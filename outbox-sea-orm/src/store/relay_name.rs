//! What the relay of a store calls itself, so that people find its host among others.
//!
//! It is a note, and no proof: whoever starts a relay may give it any name, and several may have the same.

use std::sync::{Arc, OnceLock};

use super::SqlStore;

/// Longest name, in bytes.
const BYTES_MAX: usize = 128;

/// Where Linux says what the machine is called. A unit of systemd may hide the first one.
const FILES: [&str; 2] = ["/proc/sys/kernel/hostname", "/etc/hostname"];

impl SqlStore {
    /// Sets what the relay of this store calls itself in the table of relays, where operators see it (`outbox relays`): the name of its pod, for example.
    /// Default: its host and its process id, such as `shop-7d9f/1`, where `HOSTNAME` wins over what the system says.
    ///
    /// Characters other than printable ASCII are left out, and what is beyond 128 bytes is cut off. A name of which nothing is left changes nothing. Nothing depends on
    /// the name: relays are told apart by their [`OwnerId`](outbox_core::OwnerId).
    #[must_use]
    pub fn with_relay_name(mut self, name: impl Into<String>) -> Self {
        let name = storable(&name.into());
        if !name.is_empty() {
            self.relay_name = name.into();
        }
        self
    }
}

/// Host and process id. Read once: a relay announces itself every few seconds.
pub(super) fn of_process() -> Arc<str> {
    static NAME: OnceLock<Arc<str>> = OnceLock::new();
    NAME.get_or_init(|| of(host(), std::process::id()).into()).clone()
}

/// Of a host that is too long the end is cut off, and never the process id.
fn of(host: Option<String>, process: u32) -> String {
    let process = process.to_string();
    match host {
        Some(mut host) => {
            host.truncate(BYTES_MAX - 1 - process.len());
            format!("{host}/{process}")
        }
        None => format!("pid {process}"),
    }
}

fn host() -> Option<String> {
    let variables = ["HOSTNAME", "COMPUTERNAME"]
        .into_iter()
        .filter_map(|name| std::env::var(name).ok());
    let files = FILES
        .into_iter()
        .filter_map(|path| std::fs::read_to_string(path).ok());
    let mut hosts = variables.chain(files).map(|host| storable(&host));
    hosts.find(|host| !host.is_empty())
}

/// A name as every database takes it: PostgreSQL refuses NUL, and a character that its encoding does not have; MySQL refuses a text that is too long.
fn storable(name: &str) -> String {
    let is_printable = |character: &char| (' '..='~').contains(character);
    let name: String = name.chars().filter(is_printable).collect();
    let mut name = name.trim().to_owned();
    name.truncate(BYTES_MAX);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_cut_and_holds_printable_ascii_only() {
        assert_eq!(storable(" shöp-0\u{0}\u{1b}\n"), "shp-0");
        assert_eq!(storable(" \u{0}ü\u{7f}"), "");
        assert_eq!(storable(&"ab".repeat(100)), "ab".repeat(64));
    }

    #[test]
    fn of_a_long_host_the_process_id_is_left() {
        assert_eq!(
            of(Some("x".repeat(128)), 4711),
            format!("{}/4711", "x".repeat(123))
        );
        assert_eq!(of(Some("shop-0".to_owned()), 1), "shop-0/1");
        assert_eq!(of(None, 1), "pid 1");
    }

    #[test]
    fn the_name_of_this_process_ends_with_its_id() {
        let (name, id) = (of_process(), std::process::id().to_string());
        assert!(name.ends_with(&id) && name.len() > id.len(), "{name}");
    }
}
