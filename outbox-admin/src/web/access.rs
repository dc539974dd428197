//! Who asks, and what they may do.

/// What somebody may do. A later role may do all that an earlier one may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Reads everything but payloads.
    Viewer,
    /// Also makes changes.
    Operator,
    /// Also sees payloads, with their sensitive fields masked.
    Admin,
}

impl Role {
    /// All roles, the weakest first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// The role as a lower-case word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Who asks. The application puts it into the extensions of each request, after it has found out who that is; a request without it is refused.
///
/// ```
/// use outbox_admin::web::{Access, Role};
///
/// let access = Access::new("ada", Role::Operator);
/// assert!(!access.sees_payloads());
/// assert!(access.with_payloads(true).sees_payloads());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    user: String,
    role: Role,
    sees_payloads: bool,
}

impl Access {
    /// Somebody with a role.
    #[must_use]
    pub fn new(user: impl Into<String>, role: Role) -> Self {
        Self {
            user: user.into(),
            role,
            sees_payloads: role >= Role::Admin,
        }
    }

    /// Whether they see payloads, with their sensitive fields masked, whatever their role is.
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

    /// Their role.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Whether they see payloads.
    #[must_use]
    pub fn sees_payloads(&self) -> bool {
        self.sees_payloads
    }

    /// Whether they may make changes.
    #[must_use]
    pub fn may_change(&self) -> bool {
        self.role >= Role::Operator
    }
}
