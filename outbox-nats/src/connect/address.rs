//! The addresses of NATS servers.

use std::io;

use async_nats::ServerAddr;

/// Parses one or more comma-separated addresses, as in `NATS_URL`. White space is ignored.
///
/// ```
/// assert_eq!(outbox_nats::servers("nats://a:4222, nats://b:4222")?.len(), 2);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// If an address is malformed. The error may quote the address, including a password.
pub fn servers(addresses: &str) -> io::Result<Vec<ServerAddr>> {
    let empty = || io::Error::new(io::ErrorKind::InvalidInput, "an address is empty");
    let parse = |address: &str| match address {
        "" => Err(empty()),
        address => address.parse(),
    };
    addresses.split(',').map(str::trim).map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_separated_by_commas() {
        let hosts = |addresses: &str| -> Vec<String> {
            let servers = servers(addresses).unwrap();
            servers.iter().map(|server| server.host().to_owned()).collect()
        };
        assert_eq!(hosts("nats://a:4222,nats://b:4222"), ["a", "b"]);
        assert_eq!(hosts("a, b "), ["a", "b"]);
        assert_eq!(hosts("nats://user:p%2Cw@a"), ["a"]);
    }

    #[test]
    fn an_empty_address_is_an_error() {
        assert!(servers("nats://a,").is_err());
        assert!(servers("").is_err());
    }
}
