//! Strategy *key*: the id of an inbox row, derived from a business key instead of the event.
//!
//! Invariant: one key, one id, in all versions, because ids are stored. The consumer is not part of it; it is the other half of the
//! row's key. Absent here: computing the key, and its bounds.

use uuid::Uuid;

/// Namespace of the ids. Stored, so it never changes.
const BUSINESS_KEYS: Uuid = Uuid::from_u128(0x1d6f_3a52_8c0b_5e94_a7d3_40e9_6b1c_f825);

/// The id that stands for a business key.
pub(crate) fn id(business_key: &str) -> Uuid {
    Uuid::new_v5(&BUSINESS_KEYS, business_key.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are stored in users' tables: if this test fails, every key takes effect again on upgrade.
    #[test]
    fn ids_are_frozen() {
        let ids = ["", "4711", "ü"].map(|key| id(key).to_string());
        let frozen = [
            "b0d79b1a-f763-5238-bc45-abbb2da6b12d",
            "a8a781e5-9b4c-5835-a4af-03aeaef68824",
            "fcef0e10-bbcb-5d5d-9775-c850043bc733",
        ];
        assert_eq!(ids, frozen);
    }

    #[test]
    fn keys_are_told_apart_byte_by_byte() {
        let keys = ["a", "A", "a ", " a", "ä", "a\u{308}", "a\0"];
        let ids: std::collections::HashSet<Uuid> = keys.map(id).into_iter().collect();
        assert_eq!(ids.len(), keys.len());
    }
}
