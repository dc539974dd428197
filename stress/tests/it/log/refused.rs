//! Rejected and delayed messages go through the table; all other messages use the log.

use outbox_core::Selection;
use outbox_sea_orm::SqlStore;
use outbox_testing::Operator as _;
use time::{Duration, OffsetDateTime};

use super::{Place, until};

const DEAD: i16 = 2;

/// The stream rejects large messages until its limit is raised and the dead letter is retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_message_is_dead_lettered_and_halts_only_its_account() {
    let Some(place) = Place::shared().await else {
        return;
    };
    place.reconfigure(|config| config.max_message_size = 4_096).await;
    let others = ["1", "2", "4", "5"];
    place
        .run(async {
            place.write(&["1", "2", "3", "4", "5"], 10).await;
            place.write_with("3", 1, |event| event.filler = 10_000).await;
            place.write(&["1", "2", "3", "4", "5"], 10).await;
            until("the message is no dead letter", async || {
                place.rows(DEAD).await == 1
            })
            .await;
            place.write(&others, 10).await;
            place.arrived_of(&others).await;
            let numbers = place.numbers().await;
            assert_eq!(
                numbers["3"],
                (1..=10).collect::<Vec<_>>(),
                "the account does not stand still"
            );

            place.reconfigure(|config| config.max_message_size = -1).await;
            let store = SqlStore::new(place.db.clone());
            assert_eq!(store.retry(&Selection::dead_letters()).await.unwrap(), 1);
            place.published().await;
            // New messages of the account are published from the log, not from the table.
            until("the table keeps the messages", async || {
                place.in_table().await == 0
            })
            .await;
            place.write(&["3"], 10).await;
            place.published().await;
        })
        .await;
    place.assert_balanced().await;
    place.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporarily_rejected_account_waits_while_other_accounts_flow() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let others = ["1", "2", "4", "5"];
    let all = format!("{}.>", place.name);
    let some = others.map(|account| format!("{}.account.{account}.>", place.name));
    place
        .run(async {
            place.write(&["1", "2", "3", "4", "5"], 5).await;
            place.published().await;
            place.reconfigure(|config| config.subjects = some.to_vec()).await;
            for _ in 0..5 {
                place.write(&["3"], 10).await;
                place.write(&others, 10).await;
                place.arrived_of(&others).await;
            }
            until("the table did not adopt the messages", async || {
                place.in_table().await > 0
            })
            .await;
            place
                .reconfigure(|config| config.subjects = vec![all.clone()])
                .await;
            place.write(&["1", "2", "3", "4", "5"], 10).await;
            place.published().await;
        })
        .await;
    assert_eq!(place.rows(DEAD).await, 0);
    place.assert_balanced().await;
    place.close().await;
}

/// Each of 1,000 accounts has ten delayed messages; some have further messages after them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_delayed_messages_arrive_when_due_and_in_order() {
    let Some(place) = Place::shared().await else {
        return;
    };
    let due = OffsetDateTime::now_utc() + Duration::seconds(15);
    let accounts: Vec<String> = (0..1_000).map(|n| format!("delayed-{n}")).collect();
    place
        .run(async {
            for account in &accounts {
                place
                    .write_with(account, 10, |event| event.available_at = Some(due))
                    .await;
                place.write(&["a", "b"], 1).await;
            }
            for account in accounts.iter().step_by(50) {
                place.write(&[account], 2).await;
            }
            place.arrived_of(&["a", "b"]).await;
            place.published().await;
        })
        .await;
    let arrived = place.arrived().await;
    let early = arrived
        .iter()
        .filter(|arrived| arrived.account.starts_with('d') && arrived.stored_at < due);
    assert_eq!(early.count(), 0, "delayed messages came early");
    place.assert_balanced().await;
    place.close().await;
}
