//! Bounds on recorded messages.

/// Longest aggregate type and longest event name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest aggregate id and longest deduplication key, in characters.
pub const KEY_CHARS_MAX: usize = 255;

/// Longest subject override, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 255;

/// Largest payload of a stored row that a relay loads, in bytes: 64 MiB, the most that nats-server can be configured to accept. A row with a larger payload
/// becomes a dead letter unread.
pub const ROW_PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// Largest headers of a stored row that a relay loads, in bytes of JSON: 1 MiB. A row with larger headers becomes a dead letter unread.
pub const ROW_HEADERS_BYTES_MAX: usize = 1 << 20;

/// Bounds on recorded messages. They are checked before anything is written. `outbox_record` in SQL has the defaults, whatever a program is configured with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Largest payload in bytes. Default 960 KiB, because nats-server by default accepts 1 MiB for payload and headers
    /// together.
    pub payload_bytes_max: usize,
    /// Largest total size of the application's headers in bytes. Default 16 KiB.
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
    /// Sets the largest payload in bytes. Keep it 64 KiB below the broker's `max_payload`. At most [`ROW_PAYLOAD_BYTES_MAX`]; larger values mean that.
    #[must_use]
    pub fn payload_bytes_max(mut self, bytes: usize) -> Self {
        self.payload_bytes_max = bytes.min(ROW_PAYLOAD_BYTES_MAX);
        self
    }

    /// Sets the largest total size of the application's headers in bytes. At most a sixth of [`ROW_HEADERS_BYTES_MAX`], because JSON may take six bytes for
    /// one; larger values mean that.
    #[must_use]
    pub fn headers_bytes_max(mut self, bytes: usize) -> Self {
        self.headers_bytes_max = bytes.min(ROW_HEADERS_BYTES_MAX / 6);
        self
    }
}
