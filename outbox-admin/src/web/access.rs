//! User and permissions of a request.

/// The user of a request. The application authenticates the user and adds this value to the
/// request extensions. A request without it is rejected.
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
    /// A user without access to payloads.
    #[must_use]
    pub fn new(user: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            sees_payloads: false,
        }
    }

    /// Sets whether the user may read masked payloads.
    #[must_use]
    pub fn with_payloads(mut self, sees_payloads: bool) -> Self {
        self.sees_payloads = sees_payloads;
        self
    }

    /// User name.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Whether the user may read payloads.
    #[must_use]
    pub fn sees_payloads(&self) -> bool {
        self.sees_payloads
    }
}
