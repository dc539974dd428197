//! User of a request.

/// The user of a request, added to its extensions by the application. Requests without this
/// extension are rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access(String);

impl Access {
    /// A user.
    pub fn new(user: impl Into<String>) -> Self {
        Self(user.into())
    }

    /// User name.
    pub fn user(&self) -> &str {
        &self.0
    }
}
