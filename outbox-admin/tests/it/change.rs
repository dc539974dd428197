//! Previews of changes, which change nothing.

use outbox_admin::{Change, PREVIEW_MAX, Preview, carry_out, preview, preview_resume};
use outbox_core::{Events, Intent, RelayHealth, Selection};
use outbox_testing::MemoryStore;
use outbox_testing::conformance::probe::Probe;

use crate::plant::{aggregate, all, dead, failed, noted, published, relay, settle};

async fn of_all(store: &MemoryStore, change: Change) -> Preview {
    let said = preview(store, change, &Selection::all(), None).await;
    said.expect("previewed")
}

async fn applied(store: &MemoryStore, change: Change) -> u64 {
    let operation = change.operation(&Selection::all(), None, Intent::of("ann"));
    let done = carry_out(store, &operation).await;
    done.expect("applied").changed
}

#[tokio::test(start_paused = true)]
async fn preview_counts_ordered_messages_without_change() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let halting = noted(&store, "a");
    settle(&store, &leases, halting, dead(true)).await;
    let passed = noted(&store, "b");
    settle(&store, &leases, passed, dead(false)).await;
    noted(&store, "a");
    let before = all(&store).await;
    let retry = of_all(&store, Change::Retry).await;
    assert_eq!((retry.messages, retry.aggregates, retry.halts_ended), (2, 2, 1));
    assert_eq!((retry.in_order, retry.out_of_order), (1, 1));
    assert_eq!(retry.errors[0].messages, 2);
    assert_eq!(retry.event_types["probe.noted"], 2);
    let skip = of_all(&store, Change::Skip).await;
    assert_eq!((skip.messages, skip.halts_ended), (1, 1));
    let replay = of_all(&store, Change::Replay).await;
    assert_eq!((replay.messages, replay.halts_ended), (2, 0));
    let nothing = preview(
        &store,
        Change::Retry,
        &Selection::all().aggregate(&aggregate("x")),
        None,
    )
    .await;
    let nothing = nothing.expect("previewed");
    assert_eq!((nothing.messages, nothing.effects.len()), (0, 0));
    assert_eq!(all(&store).await, before);
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
    let done = applied(&store, Change::Replay).await;
    assert_eq!(done, 0, "the log is unread");
}

/// Logged rows are selected by a replay and need no relay.
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

#[tokio::test(start_paused = true)]
async fn change_matches_its_preview() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let letter = noted(&store, "a");
    settle(&store, &leases, letter, dead(true)).await;
    let other = noted(&store, "b");
    settle(&store, &leases, other, published(true)).await;
    for (change, messages) in [(Change::Skip, 1), (Change::Replay, 2), (Change::Retry, 1)] {
        let said = of_all(&store, change).await;
        let done = applied(&store, change).await;
        assert_eq!((said.messages, done), (messages, messages), "{change:?}");
    }
    let none = of_all(&store, Change::Retry).await;
    assert_eq!(none.messages, 0, "nothing is dead any more");
}

#[tokio::test(start_paused = true)]
async fn resume_reports_whether_a_back_off_exists() {
    let store = MemoryStore::new();
    let leases = relay(&store, RelayHealth::Healthy).await;
    let (first, second) = (noted(&store, "a"), noted(&store, "b"));
    settle(&store, &leases, first, failed()).await;
    settle(&store, &leases, second, dead(true)).await;
    let ask = async |id| preview_resume(&store, &aggregate(id)).await.expect("previewed");
    let backing_off = ask("a").await;
    assert!(
        backing_off.is_possible && backing_off.effects[0].contains("its back-off of"),
        "{backing_off:?}"
    );
    let halted = ask("b").await;
    assert!(
        !halted.is_possible && halted.effects[0].contains("a dead letter halts it"),
        "{halted:?}"
    );
    let free = ask("c").await;
    assert!(
        !free.is_possible && free.effects[0].contains("it is not blocked"),
        "{free:?}"
    );
}
