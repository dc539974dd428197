//! The name of a group of dead letters.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Names a group of dead letters: 16 hexadecimal digits. It is the same wherever the same version of this library has made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupFingerprint(pub(crate) u64);

impl fmt::Display for GroupFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

impl Serialize for GroupFingerprint {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// A text is no fingerprint of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no fingerprint of a group; it has 16 hexadecimal digits, as `outbox dead-letters groups` prints it")]
pub struct GroupFingerprintError;

impl FromStr for GroupFingerprint {
    type Err = GroupFingerprintError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
        number.map(Self).ok_or(GroupFingerprintError)
    }
}
