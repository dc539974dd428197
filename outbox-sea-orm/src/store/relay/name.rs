//! Relay names for operators. Not necessarily unique.

use std::sync::{Arc, OnceLock};

const BYTES_MAX: usize = 128;

const FILES: [&str; 2] = ["/proc/sys/kernel/hostname", "/etc/hostname"];

pub(crate) fn of_process() -> Arc<str> {
    static NAME: OnceLock<Arc<str>> = OnceLock::new();
    NAME.get_or_init(|| of(host(), std::process::id()).into()).clone()
}

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

/// PostgreSQL rejects NUL and characters outside its encoding. MySQL rejects long text.
pub(crate) fn storable(name: &str) -> String {
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
    fn names_are_cut_to_printable_ascii() {
        assert_eq!(storable(" shöp-0\u{0}\u{1b}\n"), "shp-0");
        assert_eq!(storable(" \u{0}ü\u{7f}"), "");
        assert_eq!(storable(&"ab".repeat(100)), "ab".repeat(64));
    }

    #[test]
    fn long_host_keeps_the_process_id() {
        assert_eq!(
            of(Some("x".repeat(128)), 4711),
            format!("{}/4711", "x".repeat(123))
        );
        assert_eq!(of(Some("shop-0".to_owned()), 1), "shop-0/1");
        assert_eq!(of(None, 1), "pid 1");
    }
}
