//! Dead letters that expire by choice.

use std::time::Duration;

use outbox_inbox::testing::Outcome;
use outbox_inbox::{DeadLetterSelection, DeadLetterStatus, DeadLetters, PausedConsumers, Router};
use outbox_testing::{MemoryBroker, eventually};
use sea_orm::DbBackend;

use crate::on_every_backend;
use crate::runtime::{spawn, stop};
use crate::support::{OrderPlaced, Script, Step, TestDb, book, quick};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Four dead letters: one of today, and three that are older than a day, of which one is to be tried again, and one is of another consumer.
async fn four_letters(test: &TestDb) -> DeadLetters {
    let harness = test.harness(&Script::new([], Step::Fatal));
    for line in 0..4 {
        let outcome = harness.deliver::<book>(&OrderPlaced { order_id: 1, line }).await;
        assert_eq!(outcome.unwrap(), Outcome::DeadLettered);
    }
    let letters = DeadLetters::new(test.db.clone());
    let all = letters.list(&DeadLetterSelection::all(), 10).await.unwrap();
    let old = match test.sql_backend() {
        DbBackend::Sqlite => "created_at - 172800000000",
        DbBackend::MySql => "TIMESTAMPADD(DAY, -2, created_at)",
        _ => "created_at - interval '2 days'",
    };
    let quoted = |index: usize| match test.sql_backend() {
        DbBackend::Postgres => format!("'{}'", all[index].id),
        _ => format!("X'{}'", all[index].id.simple()),
    };
    let old_ones = format!("{}, {}, {}", quoted(1), quoted(2), quoted(3));
    test.execute(&format!(
        "UPDATE inbox_dead_letters SET created_at = {old} WHERE id IN ({old_ones})"
    ))
    .await;
    test.execute(&format!(
        "UPDATE inbox_dead_letters SET consumer = 'others' WHERE id = {}",
        quoted(3)
    ))
    .await;
    let marked = DeadLetterSelection::ids([all[2].id]);
    assert_eq!(letters.retry(&marked).await.unwrap(), 1);
    letters
}

async fn an_open_dead_letter_expires_if_the_configuration_says_so(test: TestDb) {
    let letters = four_letters(&test).await;
    // Paused, so that it does not take up the one that is to be tried again.
    let pauses = PausedConsumers::new(test.db.clone());
    assert!(pauses.pause("books", "stocktaking").await.unwrap());
    let config = quick().purge_every(Duration::from_secs(1));
    let inbox = test
        .inbox(&MemoryBroker::new(), Router::new().handler::<book>())
        .with_config(config.dead_letter_retention(Some(DAY)))
        .with_state(Script::ok());
    let kept = async |selection: DeadLetterSelection| letters.count(&selection).await.unwrap();
    let (shutdown, run) = spawn(inbox);
    eventually("the end of the old one", async || {
        kept(DeadLetterSelection::consumer("books")).await == 2
    })
    .await;
    stop((shutdown, run)).await;
    assert_eq!(kept(DeadLetterSelection::all()).await, 3);
    let marked = DeadLetterSelection::all().status(DeadLetterStatus::Retry);
    assert_eq!(kept(marked).await, 1);
}

on_every_backend!(an_open_dead_letter_expires_if_the_configuration_says_so);
