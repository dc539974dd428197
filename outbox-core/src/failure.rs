//! Error texts for people: the error and each distinct cause.

use std::error::Error;
use std::fmt;

const TEXT_MAX: usize = 8 * 1024;

/// An error with its distinct causes in one line, outermost first, cut after 8 KiB.
///
/// ```
/// let cause = std::io::Error::other("disk full");
/// assert_eq!(outbox_core::describe(&cause), "disk full");
/// ```
#[must_use]
pub fn describe(error: &(dyn Error + 'static)) -> String {
    let text = levels(error).join(": ");
    match text.len() > TEXT_MAX {
        true => format!("{}…", &text[..text.floor_char_boundary(TEXT_MAX)]),
        false => text,
    }
}

fn levels(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut levels = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !levels.iter().any(|level| level.contains(&text)) {
            levels.push(text);
        }
        cause = error.source();
    }
    levels
        .iter()
        .map(|level| without_line_of_server(level).to_owned())
        .collect()
}

/// Removes ` at line N` if it names a line in the server's source code. A line number of an SQL
/// statement stays.
fn without_line_of_server(text: &str) -> &str {
    match text.rsplit_once(" at line ") {
        Some((before, line))
            if text.contains("error returned from database: ")
                && !line.is_empty()
                && line.bytes().all(|byte| byte.is_ascii_digit())
                && !before.ends_with('\'') =>
        {
            before
        }
        _ => text,
    }
}

/// Any error, for `main`: `Debug` prints the text and each distinct cause.
///
/// ```no_run
/// # async fn run() -> Result<(), outbox_core::RelayError> { Ok(()) }
/// #[tokio::main]
/// async fn main() -> Result<(), outbox_core::Failure> {
///     let url = std::env::var("DATABASE_URL")
///         .map_err(|_| "set DATABASE_URL, for example to postgres://127.0.0.1/shop")?;
///     # let _ = url;
///     run().await?;
///     Ok(())
/// }
/// ```
///
/// `?` converts any error. Does not implement `std::error::Error`.
pub struct Failure(Box<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&levels(&*self.0).join("\n  because: "))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&levels(&*self.0).join(": "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("Query Error: {0}")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("error returned from database: {0}")]
    struct Inner(#[source] std::io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("leases could not be renewed")]
    struct Ours(#[source] Outer);

    fn error() -> Ours {
        Ours(Outer(Inner(std::io::Error::other("no such table"))))
    }

    #[test]
    fn repeated_causes_are_printed_once() {
        let line = "leases could not be renewed: Query Error: error returned from database: no such table";
        assert_eq!(describe(&error()), line);
    }

    #[test]
    fn long_errors_are_truncated() {
        let text = describe(&std::io::Error::other("é".repeat(TEXT_MAX)));
        assert!(text.len() <= TEXT_MAX + '…'.len_utf8() && text.ends_with("é…"));
    }

    #[test]
    fn postgres_source_lines_are_removed_from_errors() {
        let told = |text: &str| describe(&Ours(Outer(Inner(std::io::Error::other(text.to_owned())))));
        let prefix = "leases could not be renewed: Query Error: error returned from database: ";
        assert_eq!(
            told("permission denied for table outbox_leases at line 2950"),
            format!("{prefix}permission denied for table outbox_leases")
        );
        for whole in [
            "1064 (42000): You have an error in your SQL syntax near 'x' at line 1",
            "it fails at line x",
        ] {
            assert_eq!(told(whole), format!("{prefix}{whole}"));
        }
        let file = std::io::Error::other("bad value at line 3");
        assert_eq!(describe(&file), "bad value at line 3");
    }

    #[test]
    fn failure_of_main_prints_text_and_causes() {
        let failure = Failure::from(error());
        let printed = "leases could not be renewed\n  because: Query Error: error returned from database: no such table";
        assert_eq!(format!("{failure:?}"), printed);
        assert_eq!(
            format!("{:?}", Failure::from("set DATABASE_URL")),
            "set DATABASE_URL"
        );
    }
}
