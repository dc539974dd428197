//! Who asks, and what they see.

/// Who asks. The application puts it into the extensions of each request, after it has found out who that is. A request
/// without it is refused.
///
/// ```
/// use outbox_admin::web::Access;
///
/// let access = Access::new("ada");
/// assert!(!access.sees_payloads());
/// assert!(access.with_payloads(true).sees_payloads());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    user: String,
    sees_payloads: bool,
}

impl Access {
    /// Somebody who sees everything but payloads.
    #[must_use]
    pub fn new(user: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            sees_payloads: false,
        }
    }

    /// Whether they see payloads, with their sensitive fields masked.
    #[must_use]
    pub fn with_payloads(mut self, sees_payloads: bool) -> Self {
        self.sees_payloads = sees_payloads;
        self
    }

    /// Their name.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Whether they see payloads.
    #[must_use]
    pub fn sees_payloads(&self) -> bool {
        self.sees_payloads
    }
}
