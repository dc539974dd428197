//! Strategy *key*: derives the id of an inbox row from a business key.
//!
//! Ids are stored, so they never change.

use uuid::Uuid;

const BUSINESS_KEYS: Uuid = Uuid::from_u128(0x1d6f_3a52_8c0b_5e94_a7d3_40e9_6b1c_f825);

pub(crate) fn id(business_key: &str) -> Uuid {
    Uuid::new_v5(&BUSINESS_KEYS, business_key.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn keys_are_compared_byte_by_byte() {
        let keys = ["a", "A", "a ", " a", "ä", "a\u{308}", "a\0"];
        let ids: std::collections::HashSet<Uuid> = keys.map(id).into_iter().collect();
        assert_eq!(ids.len(), keys.len());
    }
}
