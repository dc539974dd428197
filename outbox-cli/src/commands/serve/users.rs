//! The file of users: a line `name:role:hash` each. Empty lines and lines that begin with `#` are comments.
//!
//! Invariants: no password is kept, and no error shows a line. A name that is not in the file costs as much time as a wrong password.

use std::collections::HashMap;
use std::path::Path;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use outbox_admin::web::Role;

use crate::config::ConfigError;

/// Shortest password of a new user.
const PASSWORD_MIN: usize = 12;

/// Who may come in.
#[derive(Debug)]
pub(super) struct Users {
    users: HashMap<String, User>,
    /// A hash of a password that nobody has, for names that are not there.
    nobody: Box<PasswordHash>,
}

#[derive(Debug)]
struct User {
    role: Role,
    /// None for somebody whom a proxy logs in.
    hash: Option<PasswordHash>,
}

impl Users {
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            ConfigError::setting(
                format!("the file of users {} cannot be read: {error}", path.display()),
                "`outbox serve --new-user NAME:ROLE` prints a line of it",
            )
        })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads the lines. `name` stands in the errors.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let mut users = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let malformed = |reason: &str| ConfigError::Malformed {
                place: format!("{name}, line {}", number + 1),
                reason: reason.to_owned(),
            };
            let mut parts = line.splitn(3, ':');
            let (Some(user), Some(role), Some(hash)) = (parts.next(), parts.next(), parts.next()) else {
                return Err(malformed("a user is `name:role:hash`"));
            };
            let role = role_of(role).ok_or_else(|| malformed("the role is viewer, operator or admin"))?;
            let hash = match hash {
                "" => None,
                hash => Some(PasswordHash::new(hash).map_err(|_| {
                    malformed("the hash is none; `outbox serve --new-user NAME:ROLE` prints one")
                })?),
            };
            if users.insert(user.to_owned(), User { role, hash }).is_some() {
                return Err(malformed("this user is there already"));
            }
        }
        if users.is_empty() {
            return Err(ConfigError::setting(
                format!("the file of users {name} has no user"),
                "`outbox serve --new-user NAME:ROLE` prints a line of it",
            ));
        }
        let nobody = hash("nobody has this password");
        Ok(Self {
            users,
            nobody: Box::new(nobody.map_err(|reason| ConfigError::setting(reason, "this is a bug"))?),
        })
    }

    /// The role of a user whom somebody else has logged in.
    pub(super) fn role(&self, name: &str) -> Option<Role> {
        self.users.get(name).map(|user| user.role)
    }

    /// The role of a user with this password. It takes some 20 ms of a processor, on purpose.
    pub(super) fn check(&self, name: &str, password: &str) -> Option<Role> {
        let user = self.users.get(name);
        let hash = user.and_then(|user| user.hash.as_ref());
        let is_right = Argon2::default()
            .verify_password(password.as_bytes(), hash.unwrap_or(&self.nobody))
            .is_ok();
        user.filter(|_| is_right && hash.is_some()).map(|user| user.role)
    }
}

fn role_of(word: &str) -> Option<Role> {
    Role::ALL.into_iter().find(|role| role.as_str() == word)
}

fn hash(password: &str) -> Result<PasswordHash, String> {
    let hash = Argon2::default().hash_password(password.as_bytes());
    hash.map_err(|error| format!("the password cannot be hashed: {error}"))
}

/// The line of a new user: `user` is `name:role`.
pub(super) fn line(user: &str, password: &str) -> Result<String, String> {
    let (name, role) = user.split_once(':').unwrap_or((user, ""));
    let is_plain = |character: char| character.is_alphanumeric() || "-_.@".contains(character);
    if name.is_empty() || !name.chars().all(is_plain) || role_of(role).is_none() {
        return Err(
            "a new user is `name:role`: letters, digits and `-_.@`, and viewer, operator or admin".to_owned(),
        );
    }
    if password.chars().count() < PASSWORD_MIN {
        return Err(format!(
            "the standard input has a password of less than {PASSWORD_MIN} characters"
        ));
    }
    Ok(format!("{name}:{role}:{}", hash(password)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWORD: &str = "correct horse battery";

    #[test]
    fn a_user_of_the_file_comes_in_with_the_password_and_nobody_else_does() {
        let line = line("ada:operator", PASSWORD).unwrap();
        assert!(!line.contains("horse"), "{line}");
        let text = format!("# who is called\n\n{line}\nbob:viewer:\n");
        let users = Users::parse("users", &text).unwrap();
        assert_eq!(users.check("ada", PASSWORD), Some(Role::Operator));
        for (name, password) in [
            ("ada", "wrong horse battery"),
            ("ada", ""),
            ("eve", PASSWORD),
            ("eve", "nobody has this password"),
            ("bob", ""),
            ("bob", "nobody has this password"),
        ] {
            assert_eq!(users.check(name, password), None, "{name} {password}");
        }
        assert_eq!((users.role("bob"), users.role("eve")), (Some(Role::Viewer), None));
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_its_line_and_without_its_text() {
        for (text, expected) in [
            ("ada:operator", "users, line 1: a user is"),
            ("\nada:root:$argon2id$secret", "users, line 2: the role is"),
            ("ada:viewer:secret", "users, line 1: the hash is none"),
            (
                "ada:viewer:\nada:admin:",
                "users, line 2: this user is there already",
            ),
            ("# nobody", "has no user"),
        ] {
            let error = Users::parse("users", text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_new_user_has_a_plain_name_a_role_and_a_long_password() {
        for (user, password) in [
            ("ada", PASSWORD),
            ("ada:root", PASSWORD),
            (":viewer", PASSWORD),
            ("a b:viewer", PASSWORD),
            ("ada:viewer", "short"),
        ] {
            line(user, password).unwrap_err();
        }
    }
}
