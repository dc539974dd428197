//! What an operation did, in words.
//!
//! Invariant: a number is said with the word for what was done to so many, and only if it is known.

use outbox_core::OperationKind as Kind;

use crate::OperationRow;
use crate::words::counted;

/// Whether how many it is shows only at its end: what it does is in no transaction with its count.
fn is_unknown(row: &OperationRow) -> bool {
    let is_counted_last = matches!(
        Kind::from(row.kind.as_str()),
        Kind::Reconcile | Kind::Migrate | Kind::InitLog | Kind::DropLog
    );
    is_counted_last && !row.is_finished
}

/// What it did, in a sentence.
pub(super) fn did(row: &OperationRow) -> String {
    if is_unknown(row) {
        return format!("{}: how much of it was done is not known.", row.kind);
    }
    let is_none = row.changed == 0;
    let (one, many) = match Kind::from(row.kind.as_str()) {
        Kind::Retry => (
            "dead letter was made pending again.",
            "dead letters were made pending again.",
        ),
        Kind::Skip => ("dead letter was skipped.", "dead letters were skipped."),
        Kind::Replay => ("copy was recorded.", "copies were recorded."),
        Kind::Resume => return "Its back-off was ended.".to_owned(),
        Kind::Forget => ("message was deleted.", "messages were deleted."),
        Kind::Pause => return "Publishing was paused.".to_owned(),
        Kind::Unpause => return "A pause of publishing was ended.".to_owned(),
        Kind::Purge => (
            "published message was deleted.",
            "published messages were deleted.",
        ),
        Kind::PurgeInbox => (
            "record of an inbox was deleted.",
            "records of inboxes were deleted.",
        ),
        Kind::Reconcile => (
            "message that the stream had lost was published again.",
            "messages that the stream had lost were published again.",
        ),
        Kind::Migrate => ("migration was applied.", "migrations were applied."),
        Kind::InitLog if is_none => return "The log was set up already.".to_owned(),
        Kind::InitLog => return "The log was set up.".to_owned(),
        Kind::DropLog => return "The log was taken down.".to_owned(),
        Kind::RetryLetters => (
            "dead letter of a consumer is tried again.",
            "dead letters of consumers are tried again.",
        ),
        Kind::CancelRetry => (
            "dead letter of a consumer is not tried again.",
            "dead letters of consumers are not tried again.",
        ),
        Kind::DiscardLetters | Kind::EraseLetters => (
            "dead letter of a consumer was deleted.",
            "dead letters of consumers were deleted.",
        ),
        Kind::PauseConsumer => return "A consumer was paused.".to_owned(),
        Kind::ResumeConsumer => return "The pause of a consumer was ended.".to_owned(),
        // A kind of a later version.
        _ => return format!("{}: {} changed.", row.kind, row.changed),
    };
    counted(row.changed, one, many)
}

/// To how many what was done, in two words.
pub(super) fn how_many(row: &OperationRow) -> String {
    if is_unknown(row) {
        return "–".to_owned();
    }
    let done = match Kind::from(row.kind.as_str()) {
        Kind::Purge | Kind::PurgeInbox | Kind::Forget | Kind::DiscardLetters | Kind::EraseLetters => {
            "deleted"
        }
        Kind::Migrate => "applied",
        Kind::Replay => "recorded",
        Kind::Reconcile => "published",
        _ => "changed",
    };
    format!("{} {done}", row.changed)
}
