//! Polls for effects without a notification, such as a row in a database.

use std::time::Duration;

const EVERY: Duration = Duration::from_millis(20);
const AT_MOST: Duration = Duration::from_secs(90);

/// Calls `holds` every 20 ms, for at most 90 s, until it returns true. `what` names the event in
/// the panic message.
///
/// # Panics
///
/// Panics if `holds` does not return true within 90 s.
///
/// # Cancellation
///
/// Dropping the future drops the running call of `holds`.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(EVERY).await;
        }
    };
    let waited = tokio::time::timeout(AT_MOST, wait).await;
    assert!(waited.is_ok(), "{what} did not happen within {AT_MOST:?}");
}
