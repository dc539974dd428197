//! Credentials files, which are read again at each connection.
//!
//! `ConnectOptions::credentials_file` of async-nats reads the file once, so an expired user JWT
//! would stay in use. Invariant: no part of the file is formatted or logged.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Auth, AuthError, ConnectOptions};
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;

use crate::connect::{inbox_prefix, with_defaults};

/// Options of [`connect_options`](crate::connect_options) with a credentials file of `nsc`.
///
/// The client reads the file at each connection, so a renewed file needs no restart. If the file
/// cannot be read, the client uses the last readable credentials. Replies arrive under
/// `_INBOX.<name>`, with the user's name in the JWT ([`inbox_prefix`](crate::inbox_prefix)).
///
/// # Errors
///
/// If the file cannot be read at the call, or holds no JWT or no valid key.
pub fn connect_options_with_credentials(path: impl Into<PathBuf>) -> io::Result<ConnectOptions> {
    let path = path.into();
    let first = Credentials::read(&path)?;
    let name = first.name();
    let last = Arc::new(Mutex::new(first));
    let answer = move |nonce: Vec<u8>| {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        match Credentials::read(&path) {
            Ok(credentials) => *last = credentials,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "credentials file is not readable; using the last credentials");
            }
        }
        std::future::ready(last.answer(&nonce))
    };
    let options = with_defaults(ConnectOptions::with_auth_callback(answer));
    Ok(match name {
        Some(name) => options.custom_inbox_prefix(inbox_prefix(&name)),
        None => options,
    })
}

struct Credentials {
    jwt: String,
    key: KeyPair,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    fn read(path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut blocks = blocks(&text);
        let jwt = blocks.next().ok_or_else(|| invalid("the file holds no JWT"))?;
        let seed = blocks.next().ok_or_else(|| invalid("the file holds no key"))?;
        // The error of nkeys is dropped: it could quote the seed.
        let key = KeyPair::from_seed(seed).map_err(|_| invalid("the key of the file is malformed"))?;
        Ok(Self {
            jwt: jwt.to_owned(),
            key,
        })
    }

    fn name(&self) -> Option<String> {
        let claims = BASE64URL_NOPAD
            .decode(self.jwt.split('.').nth(1)?.as_bytes())
            .ok()?;
        let claims: serde_json::Value = serde_json::from_slice(&claims).ok()?;
        claims["name"]
            .as_str()
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
    }

    fn answer(&self, nonce: &[u8]) -> Result<Auth, AuthError> {
        let mut auth = Auth::new();
        auth.jwt = Some(self.jwt.clone());
        auth.signature = Some(self.key.sign(nonce).map_err(AuthError::new)?);
        Ok(auth)
    }
}

fn blocks(text: &str) -> impl Iterator<Item = &str> {
    let is_border = |line: &str| line.starts_with("---");
    let mut within = false;
    text.lines().map(str::trim).filter(move |line| {
        if is_border(line) {
            within = line.contains("BEGIN");
            return false;
        }
        within && !line.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_file_error_quotes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("relay.creds");
        for text in [
            "",
            "-----BEGIN-----\nsecret\n",
            "-----BEGIN-----\na.b.c\n---END\n-----BEGIN---\nsecret\n",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Credentials::read(&path).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
        }
    }
}
