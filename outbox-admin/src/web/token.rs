//! The token in each form: it shows that a page of this program has made the request.
//!
//! Invariant: a token is good for one user and one process. After a restart a form that was opened before is refused, and the page says to load it again.

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

/// Makes tokens and checks them.
#[derive(Clone)]
pub(super) struct Tokens {
    key: [u8; 32],
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Tokens")
    }
}

impl Tokens {
    /// With a key that no other process has: 244 random bits of the operating system.
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        key[..16].copy_from_slice(Uuid::new_v4().as_bytes());
        key[16..].copy_from_slice(Uuid::new_v4().as_bytes());
        Self { key }
    }

    /// The token of a user. The key is hashed before and after the name, so that no other text can be appended to a known hash.
    pub(super) fn of(&self, user: &str) -> String {
        let inner = Sha256::new().chain_update(self.key).chain_update(user).finalize();
        let outer = Sha256::new().chain_update(inner).chain_update(self.key);
        HEXLOWER.encode(&outer.finalize())
    }

    /// Whether this is the token of a user. It takes the same time wherever the two differ.
    pub(super) fn is_of(&self, user: &str, token: &str) -> bool {
        let expected = self.of(user);
        let differing = expected.bytes().zip(token.bytes());
        let difference = differing.fold(0, |difference, (a, b)| difference | (a ^ b));
        expected.len() == token.len() && difference == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_one_user_and_one_process() {
        let tokens = Tokens::new();
        let token = tokens.of("ada");
        assert!(tokens.is_of("ada", &token));
        assert!(!tokens.is_of("bob", &token));
        assert!(!tokens.is_of("ada", &token[1..]));
        assert!(!tokens.is_of("ada", ""));
        assert!(!Tokens::new().is_of("ada", &token));
    }
}
