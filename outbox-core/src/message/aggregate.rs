//! The aggregate: the unit of order.

use std::fmt;

/// Number of partitions and maximum of useful relays. Frozen: rows store their partition.
pub const PARTITIONS: u16 = 64;

/// The ordering key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Aggregate {
    /// Aggregate type (`order`).
    pub aggregate_type: String,
    /// Id as text.
    pub id: String,
}

impl Aggregate {
    /// Names an aggregate.
    pub fn new(aggregate_type: impl Into<String>, id: impl Into<String>) -> Self {
        Self {
            aggregate_type: aggregate_type.into(),
            id: id.into(),
        }
    }

    /// The partition, in `0..PARTITIONS`: the 64-bit FNV-1a hash of `type`, a zero byte and `id`,
    /// folded and reduced. Frozen: rows store the partition.
    #[must_use]
    pub fn partition(&self) -> u16 {
        u16::try_from(self.bucket(u64::from(PARTITIONS))).unwrap_or_default()
    }

    #[doc(hidden)]
    #[must_use]
    pub fn bucket(&self, of: u64) -> u64 {
        let bytes = self.aggregate_type.bytes().chain([0]).chain(self.id.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        (hash ^ (hash >> 32)) % of
    }
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.aggregate_type, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows store their partition. If the hash changes, the messages of an aggregate get two
    /// partitions and lose their order.
    #[test]
    fn partitions_are_frozen() {
        let partition = |id: &str| Aggregate::new("order", id).partition();
        assert_eq!(["1", "2", "3", "ü", ""].map(partition), [19, 58, 45, 29, 39]);
    }
}
