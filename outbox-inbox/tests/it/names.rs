//! The roots of the crates can be imported together: what one of them calls by a name, no other calls by it.

use outbox_core::*;
use outbox_inbox::*;
use outbox_sea_orm::*;

/// Names are looked up when they are used, so a clash shows here as a compiler error.
#[test]
fn types_of_relay_and_inbox_have_names_of_their_own() {
    // Which messages of the outbox, and which dead letters of a consumer.
    assert_eq!(Selection::dead_letters().status, Some(MessageStatus::Dead));
    assert_eq!(DeadLetterSelection::all().status, None::<DeadLetterStatus>);
    // What a purge of the outbox deleted, and one of the inbox.
    let outbox = Purged {
        deleted: 1,
        next: None,
    };
    assert_eq!(outbox.deleted + PurgedInbox::default().messages, 1);
    // What a handler is given. Web frameworks have a `State` of their own.
    let HandlerState(state) = HandlerState(std::sync::Arc::new(7));
    assert_eq!(*state, 7);
    // What relay and inbox are made from, and what they say of themselves.
    assert_ne!(RelayConfig::default().retention, Retention::Keep);
    assert!(!InboxConfig::default().retention.is_zero());
    assert!(OutboxConfig::default().names == TableNames::default());
}
