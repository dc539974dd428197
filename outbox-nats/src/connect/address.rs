//! Server addresses in the forms that programs use.

use std::io;

use async_nats::ServerAddr;

/// One or more NATS servers.
///
/// A text holds one or more comma-separated addresses, as in `NATS_URL`. White space is ignored.
///
/// ```
/// use outbox_nats::Servers as _;
///
/// assert_eq!("nats://a:4222, nats://b:4222".servers()?.len(), 2);
/// # Ok::<(), std::io::Error>(())
/// ```
pub trait Servers {
    /// Parses the addresses.
    ///
    /// # Errors
    ///
    /// If an address is malformed. The error may quote the address, including a password.
    fn servers(&self) -> io::Result<Vec<ServerAddr>>;
}

impl Servers for str {
    fn servers(&self) -> io::Result<Vec<ServerAddr>> {
        let addresses = self.split(',').map(str::trim);
        let empty = || io::Error::new(io::ErrorKind::InvalidInput, "an address is empty");
        let parse = |address: &str| match address {
            "" => Err(empty()),
            address => address.parse(),
        };
        addresses.map(parse).collect()
    }
}

impl Servers for String {
    fn servers(&self) -> io::Result<Vec<ServerAddr>> {
        self.as_str().servers()
    }
}

impl Servers for ServerAddr {
    fn servers(&self) -> io::Result<Vec<ServerAddr>> {
        Ok(vec![self.clone()])
    }
}

impl<T: Servers> Servers for [T] {
    fn servers(&self) -> io::Result<Vec<ServerAddr>> {
        let each: io::Result<Vec<_>> = self.iter().map(Servers::servers).collect();
        Ok(each?.concat())
    }
}

impl<T: Servers> Servers for Vec<T> {
    fn servers(&self) -> io::Result<Vec<ServerAddr>> {
        self.as_slice().servers()
    }
}

impl<T: Servers, const N: usize> Servers for [T; N] {
    fn servers(&self) -> io::Result<Vec<ServerAddr>> {
        self.as_slice().servers()
    }
}

impl<T: Servers + ?Sized> Servers for &T {
    fn servers(&self) -> io::Result<Vec<ServerAddr>> {
        (**self).servers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(servers: impl Servers) -> Vec<String> {
        let servers = servers.servers().unwrap();
        servers.iter().map(|server| server.host().to_owned()).collect()
    }

    #[test]
    fn addresses_are_separated_by_commas() {
        let two = ["a", "b"];
        assert_eq!(hosts("nats://a:4222,nats://b:4222"), two);
        assert_eq!(hosts("a, b ".to_owned()), two);
        assert_eq!(hosts(["a", "b"].as_slice()), two);
        assert_eq!(hosts(vec!["a,b".to_owned()]), two);
        assert_eq!(hosts("nats://user:p%2Cw@a".parse::<ServerAddr>().unwrap()), ["a"]);
    }

    #[test]
    fn an_empty_address_is_an_error() {
        assert!("nats://a,".servers().is_err());
        assert!("".servers().is_err());
    }
}
