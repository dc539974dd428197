//! Waiting for what a test has caused and is not told of, such as a row in a database.

use std::time::Duration;

const EVERY: Duration = Duration::from_millis(20);
/// Longer than any step of a test takes.
const AT_MOST: Duration = Duration::from_secs(90);

/// Asks every 20 ms, for at most 90 s, until `holds` returns true. `what` names the event in the panic.
///
/// # Panics
///
/// If it does not hold within 90 s.
///
/// # Cancellation
///
/// Dropping the future drops the question that is under way.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(EVERY).await;
        }
    };
    let waited = tokio::time::timeout(AT_MOST, wait).await;
    assert!(waited.is_ok(), "{what} did not happen within {AT_MOST:?}");
}
