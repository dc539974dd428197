//! Messages published from the log stay available to replay and reconcile.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use outbox_core::log::{LogReader as _, MessageLog as _};
use outbox_core::relay::reconcile::{self, Span};
use outbox_core::{MessageId, OutboxAdmin as _, PurgeRequest, Selection};
use outbox_sea_orm::SqlStore;
use outbox_testing::{Operator as _, eventually};
use sea_orm::ConnectionTrait as _;
use time::OffsetDateTime;

use crate::support::{Place, SOON, sleep};

crate::on_a_log! {
    position_of_another_server_proves_no_publish,
    cancelled_begin_of_a_service_hides_no_write_of_the_log,
}

const MANY: NonZeroU32 = NonZeroU32::new(1_000).unwrap();
const HOUR: Duration = Duration::from_secs(3600);

async fn ids(store: &SqlStore, span: Span) -> BTreeSet<MessageId> {
    let found = store.published(span.from, span.until, None, MANY).await.unwrap();
    found.iter().map(|message| message.id).collect()
}

async fn passed(place: &Place, store: &SqlStore) -> Span {
    let from = OffsetDateTime::now_utc() - HOUR;
    let mut span = Span { from, until: from };
    place
        .run(async {
            place.write(0..3, 2).await;
            span.until = OffsetDateTime::now_utc();
            let wait = async {
                while ids(store, span).await.len() < 6 {
                    place.write(3..4, 1).await;
                    sleep(50).await;
                }
            };
            tokio::time::timeout(SOON, wait).await.unwrap();
            place.published().await;
        })
        .await;
    span
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_the_log_lost_by_the_broker_are_reconciled() {
    let Some(place) = Place::open().await else { return };
    let store = SqlStore::new(place.db.clone());
    let span = passed(&place, &store).await;
    place.write(4..6, 1).await;
    let lost: Vec<MessageId> = ids(&store, span).await.into_iter().take(4).collect();
    place.broker.forget(&lost);
    let later = Span {
        until: OffsetDateTime::now_utc() + HOUR,
        ..span
    };
    let publisher = place.broker.publisher();
    let done = reconcile::reconcile(&store, &publisher, &place.broker, later, Duration::MAX).await;
    let done = done.unwrap();
    assert_eq!(done.published, 4, "{done:?}");
    assert_eq!(
        place
            .number("SELECT count(*) FROM outbox_messages WHERE status <> 4")
            .await,
        0
    );
    let left_out = place
        .log()
        .undecided_between(later.from, later.until)
        .await
        .unwrap();
    let logged = place.number("SELECT count(*) FROM outbox_messages").await;
    assert!(left_out >= 2, "{left_out}");
    assert_eq!(i64::try_from(left_out + done.compared).unwrap(), logged);
    let on_stream = place.broker.messages().len();
    place.run(place.published()).await;
    assert_eq!(place.broker.messages().len(), on_stream + 2);
    place.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replay_takes_only_messages_passed_by_the_position() {
    let Some(place) = Place::open().await else { return };
    let store = SqlStore::new(place.db.clone());
    let span = passed(&place, &store).await;
    place.write(4..6, 1).await;
    let early = Selection::all().recorded_until(span.until);
    assert_eq!(store.replay(&early).await.unwrap(), 6);
    for aggregate in ["4", "5"] {
        let unread = Selection::all().aggregate(&outbox_core::Aggregate::new("probe", aggregate));
        assert_eq!(
            store.replay(&unread).await.unwrap(),
            0,
            "no relay has read the message"
        );
    }
    let on_stream = place.broker.messages().len();
    let wait = async {
        while place.broker.messages().len() < on_stream + 8 {
            sleep(10).await;
        }
    };
    place
        .run(async { tokio::time::timeout(SOON, wait).await.unwrap() })
        .await;
    place.log().drop().await.unwrap();
    assert_eq!(place.broker.messages().len(), on_stream + 8);
    place.close().await;
}

/// If the position comes from another server or an inactive log, or the transaction is in the
/// future, the message does not count as published.
async fn position_of_another_server_proves_no_publish(place: &Place) {
    let store = SqlStore::new(place.db.clone());
    let span = passed(place, &store).await;
    for change in [
        "system_id = system_id + 1",
        "system_id = system_id - 1, passed_xid = '1000000000'",
        "passed_xid = NULL",
        "is_on = false",
    ] {
        place.execute(&format!("UPDATE outbox_log SET {change}")).await;
        assert_eq!(ids(&store, span).await.len(), 0, "{change}");
        assert_eq!(store.replay(&Selection::all()).await.unwrap(), 0, "{change}");
    }
    place.execute("UPDATE outbox_log SET is_on = true").await;
}

/// If a service cancels `begin`, a connection of the shared pool stays in a transaction.
async fn cancelled_begin_of_a_service_hides_no_write_of_the_log(place: &Place) {
    place.execute("CREATE TABLE marker (n bigint)").await;
    let pool = place.one_connection().await;
    let log = place.log_over(&pool, &place.url);
    let position = log.written().await.unwrap();
    let mut reader = log.open().await.unwrap();
    let purge = PurgeRequest {
        older_than: Some(HOUR),
        keys_older_than: HOUR,
        after: None,
        limit: MANY,
    };
    for call in 0..5 {
        pool.execute_unprepared("BEGIN").await.unwrap();
        match call {
            0 => drop(log.written().await.unwrap()),
            1 => drop(log.adopt(&[]).await.unwrap()),
            2 => drop(log.purge(purge).await.unwrap()),
            3 => {
                let mut reader = reader.take().unwrap();
                reader.confirm(position).await.unwrap();
                reader.close().await;
            }
            _ => {
                eventually("a reader of the log", async || {
                    reader = log.open().await.unwrap();
                    reader.is_some()
                })
                .await;
            }
        }
        pool.execute_unprepared("INSERT INTO marker VALUES (1)")
            .await
            .unwrap();
        assert_eq!(
            place.number("SELECT count(*) FROM marker").await,
            call + 1,
            "call {call}"
        );
    }
    reader.unwrap().close().await;
}
