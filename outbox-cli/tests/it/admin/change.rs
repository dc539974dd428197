//! Previews of changes, which change nothing.

use outbox::core::{Events, Intent, Selection};
use outbox_cli::admin::{Change, PREVIEW_MAX, Preview, carry_out, preview};
use outbox_testing::MemoryStore;
use outbox_testing::conformance::probe::Probe;

use crate::admin::plant::noted;

async fn of_all(store: &MemoryStore, change: Change) -> Preview {
    let said = preview(store, change, &Selection::all(), None).await;
    said.expect("previewed")
}

/// A logged row does not record whether it was published; the position of the log does.
#[tokio::test(start_paused = true)]
async fn replay_preview_counts_all_logged_messages() {
    let store = MemoryStore::new();
    let _log = store.log();
    noted(&store, "a");
    let said = of_all(&store, Change::Replay).await;
    assert_eq!(said.messages, 1);
    assert!(
        said.effects
            .iter()
            .any(|effect| effect.contains("unless the log position has passed it")),
        "{:?}",
        said.effects
    );
    let replay = Change::Replay.operation(&Selection::all(), None, Intent::of("ann"));
    let done = carry_out(&store, &replay).await.expect("applied");
    assert_eq!(done.changed, 0, "the log is unread");
}

#[tokio::test(start_paused = true)]
async fn preview_reports_its_count_limit() {
    const EACH: u32 = 1_000;
    let store = MemoryStore::new();
    let _log = store.log();
    for batch in 0..PREVIEW_MAX / EACH {
        let mut events = Events::new();
        for number in 0..EACH {
            events = events.with(Probe::noted(format!("a{}", number % 100), u64::from(batch)));
        }
        store.record(events).expect("it is recorded");
    }
    let ask = async || {
        let said = of_all(&store, Change::Replay).await;
        (said.messages, said.is_complete)
    };
    let bound = u64::from(PREVIEW_MAX);
    assert_eq!(ask().await, (bound, true), "that is all");
    noted(&store, "last");
    assert_eq!(ask().await, (bound, false), "one more is not counted");
}
