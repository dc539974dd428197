//! Bounds on recorded messages.

/// Maximum length of aggregate types and event names, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Maximum length of aggregate ids and deduplication keys, in characters.
pub const KEY_CHARS_MAX: usize = 255;

/// Maximum length of a subject override, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 255;

/// Maximum payload of a row that a relay loads, in bytes: 64 MiB, the highest limit of nats-server.
/// A larger row becomes a dead letter.
pub const ROW_PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// Maximum headers of a row that a relay loads, in bytes of JSON: 1 MiB. A larger row becomes a
/// dead letter.
pub const ROW_HEADERS_BYTES_MAX: usize = 1 << 20;

/// Bounds on recorded messages, checked before writing. The SQL function `outbox_record` uses the
/// defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum payload in bytes. Default 960 KiB: nats-server accepts 1 MiB with headers by
    /// default.
    pub payload_bytes_max: usize,
    /// Maximum total size of the application's headers in bytes. Default 16 KiB.
    pub headers_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload_bytes_max: 960 * 1024,
            headers_bytes_max: 16 * 1024,
        }
    }
}

impl Limits {
    /// Sets the maximum payload in bytes, capped at [`ROW_PAYLOAD_BYTES_MAX`]. Keep it 64 KiB below
    /// the broker's `max_payload`.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.payload_bytes_max = bytes.min(ROW_PAYLOAD_BYTES_MAX);
        self
    }

    /// Sets the maximum total size of application headers in bytes, capped at a sixth of
    /// [`ROW_HEADERS_BYTES_MAX`]: JSON may need six bytes for one.
    #[must_use]
    pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
        self.headers_bytes_max = bytes.min(ROW_HEADERS_BYTES_MAX / 6);
        self
    }
}
