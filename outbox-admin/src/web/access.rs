//! User and permissions of a request.

/// The user of a request, added to its extensions by the application. Requests without it are
/// rejected.
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

    /// Permits masked payloads.
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
