//! Bounds on recorded messages.

/// Maximum bytes of aggregate types and event names.
pub const NAME_BYTES_MAX: usize = 64;

/// Maximum characters of aggregate ids and deduplication keys.
pub const KEY_CHARS_MAX: usize = 255;

/// Maximum bytes of a subject.
pub const SUBJECT_BYTES_MAX: usize = 255;

/// Maximum payload bytes that a relay loads: 64 MiB, the highest limit of nats-server. A larger row
/// becomes a dead letter.
pub const ROW_PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// Maximum bytes of JSON headers that a relay loads: 1 MiB. A larger row becomes a dead letter.
pub const ROW_HEADERS_BYTES_MAX: usize = 1 << 20;

/// Bounds on recorded messages, checked before writing. The SQL function `outbox_record` uses the
/// defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum payload bytes. Default 960 KiB: nats-server accepts 1 MiB with headers by default.
    pub payload_bytes_max: usize,
    /// Maximum total bytes of application headers. Default 16 KiB.
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
    /// Sets the maximum payload bytes, capped at [`ROW_PAYLOAD_BYTES_MAX`]. Keep the maximum 64 KiB
    /// below the broker's `max_payload`.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.payload_bytes_max = bytes.min(ROW_PAYLOAD_BYTES_MAX);
        self
    }

    /// Sets the maximum total bytes of application headers, capped at a sixth of
    /// [`ROW_HEADERS_BYTES_MAX`]: JSON may need six bytes for one byte of a header.
    #[must_use]
    pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
        self.headers_bytes_max = bytes.min(ROW_HEADERS_BYTES_MAX / 6);
        self
    }
}
