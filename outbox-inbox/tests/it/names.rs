//! The roots of the crates can be imported together.

use outbox_core::*;
use outbox_inbox::*;
use outbox_sea_orm::*;

#[test]
fn relay_and_inbox_types_have_distinct_names() {
    assert_eq!(Selection::dead_letters().status, Some(MessageStatus::Dead));
    assert_eq!(DeadLetterSelection::all().status, None::<DeadLetterStatus>);
    let HandlerState(state) = HandlerState(std::sync::Arc::new(7));
    assert_eq!(*state, 7);
    assert_ne!(RelayConfig::default().retention, Retention::Keep);
    assert!(!InboxConfig::default().retention.is_zero());
    assert!(OutboxConfig::default().names == TableNames::default());
}
