//! Messages with the status *logged* that no relay publishes: after a restore, and after manual
//! changes of a table.

use outbox_core::Relay;
use outbox_core::shutdown::CancellationToken;
use outbox_sea_orm::SqlStore;

use crate::support::{Place, init, quick};

crate::on_a_log! {
    drop_of_an_unknown_log_keeps_the_active_log,
    interrupted_drop_is_finished_by_the_next_call,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_releases_messages_logged_on_another_server() {
    for change in [
        "system_id = system_id + 1, passed_xid = '1000'",
        "system_id = system_id + 1, passed_xid = '1000000000'",
        "passed_xid = '1000000000'",
    ] {
        let Some(place) = Place::open().await else { return };
        place.write(0..5, 1).await;
        place.execute(&format!("UPDATE outbox_log SET {change}")).await;
        place.log().drop().await.unwrap();
        assert_eq!((place.rows(0).await, place.rows(1).await), (5, 0), "{change}");
        place.close().await;
    }
}

const ACCIDENTS: [&str; 3] = [
    "DROP TABLE outbox_log",
    "DELETE FROM outbox_log",
    "DROP TABLE outbox_log; ALTER TABLE outbox_messages ALTER COLUMN status SET DEFAULT 0",
];

async fn after(accident: &str, place: Option<Place>) -> Option<Place> {
    let place = place?;
    place
        .run(async {
            place.write(0..3, 2).await;
            place.published().await;
        })
        .await;
    place.write(0..3, 1).await;
    place.execute(accident).await;
    Some(place)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_publishes_messages_logged_without_a_log() {
    for accident in ACCIDENTS {
        let Some(place) = after(accident, Place::open().await).await else {
            return;
        };
        let status = place.log().status().await.unwrap();
        assert!(!status.is_on && status.undecided >= 3, "{accident}: {status:?}");
        assert!(place.log().has_unclaimed().await.unwrap(), "{accident}");
        init(&place.log()).await;
        place
            .run(async {
                place.write(0..3, 1).await;
                place.published().await;
            })
            .await;
        place.close_balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drop_releases_messages_logged_without_a_log() {
    for accident in ACCIDENTS {
        let Some(place) = after(accident, Place::open().await).await else {
            return;
        };
        assert!(place.log().status().await.unwrap().undecided >= 3, "{accident}");
        place.log().drop().await.unwrap();
        let status = place.log().status().await.unwrap();
        assert!(
            !status.takes_new && status.undecided == 0,
            "{accident}: {status:?}"
        );
        assert_eq!(place.rows(4).await, 0, "{accident}");
        place.write(0..3, 1).await;
        let polling =
            Relay::new(SqlStore::new(place.db.clone()), place.broker.publisher()).with_config(quick());
        let stop = CancellationToken::new();
        let done = async {
            place.published().await;
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(polling.run(stop.clone()), done);
        ended.unwrap();
        place.close_balanced().await;
    }
}

async fn drop_of_an_unknown_log_keeps_the_active_log(place: &Place) {
    place.write(0..3, 1).await;
    let other = place.log().named(&format!("{}_b", place.name)).unwrap();
    other.drop().await.unwrap();
    let status = place.log().status().await.unwrap();
    assert!(status.is_on && status.takes_new, "{status:?}");
    assert_eq!(place.rows(4).await, 3);
    let status = other.status().await.unwrap();
    assert_eq!(
        (status.other.as_deref(), status.undecided),
        (Some(&*place.name), 0)
    );
    assert!(!other.has_unclaimed().await.unwrap());
}

/// The crash comes after new messages are pending again, and before published messages are marked.
async fn interrupted_drop_is_finished_by_the_next_call(place: &Place) {
    place.publish_and_pass().await;
    place
        .execute(
            "DELETE FROM outbox_messages m USING outbox_log l WHERE age(m.xmin) <= age(l.passed_xid::xid); \
             ALTER TABLE outbox_messages ALTER COLUMN status SET DEFAULT 0; UPDATE outbox_log SET is_on = false",
        )
        .await;
    let passed = place.rows(4).await;
    assert!(passed > 0, "the position had passed some");
    assert!(place.log().has_unclaimed().await.unwrap());
    assert_eq!(
        place.log().status().await.unwrap().undecided,
        0,
        "all are published"
    );
    place.log().drop().await.unwrap();
    assert_eq!((place.rows(0).await, place.rows(1).await), (0, passed));
    assert!(!place.log().has_unclaimed().await.unwrap());
}

/// The second call of `init` must not mistake its own slot for the stored slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_init_loses_nothing() {
    for _ in 0..5 {
        let Some(place) = Place::without_log().await else {
            return;
        };
        let (log, second) = (place.log(), place.log());
        let write = async {
            for _ in 0..20 {
                place.write(0..3, 1).await;
            }
        };
        let (first, other, ()) = tokio::join!(log.init(), second.init(), write);
        drop((first, other));
        init(&log).await;
        place.run(place.published()).await;
        place.close_balanced().await;
    }
}
