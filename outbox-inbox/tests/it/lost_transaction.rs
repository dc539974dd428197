//! Handlers that succeed after a failed statement, although their transaction may be lost.

use std::time::Duration;

use outbox_inbox::testing::Outcome;
use outbox_inbox::{Event, HandlerError, StableKey, Tx, idempotent_handler};
use sea_orm::{ConnectionTrait, DatabaseTransaction};

use crate::on_every_backend;
use crate::support::{Backend, OrderPlaced, Script, TestDb, message, placed};

const NO_SUCH_TABLE: &str = "INSERT INTO no_such_table VALUES (1)";

async fn take_effect(consumer: &str, event: &OrderPlaced, tx: &Tx<'_>) -> Result<(), HandlerError> {
    let order_id = event.order_id;
    let effect =
        format!("INSERT INTO effects (consumer, order_id, stable_key) VALUES ('{consumer}', {order_id}, '')");
    tx.execute_unprepared(&effect).await?;
    Ok(())
}

#[idempotent_handler(consumer = "swallows")]
async fn swallow(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    take_effect("swallows", &event, &tx).await?;
    let _ = tx.execute_unprepared(NO_SUCH_TABLE).await;
    Ok(())
}

#[idempotent_handler(consumer = "drops")]
async fn drop_statement(event: Event<OrderPlaced>, tx: Tx<'_>, _key: StableKey) -> Result<(), HandlerError> {
    take_effect("drops", &event, &tx).await?;
    let statement = tx.execute_unprepared(NO_SUCH_TABLE);
    let _ = tokio::time::timeout(Duration::ZERO, statement).await;
    Ok(())
}

#[idempotent_handler(consumer = "bypasses")]
async fn bypass(event: Event<OrderPlaced>, tx: Tx<'_>) -> Result<(), HandlerError> {
    take_effect("bypasses", &event, &tx).await?;
    let transaction: &DatabaseTransaction = &tx;
    let _ = transaction.execute_unprepared(NO_SUCH_TABLE).await;
    Ok(())
}

async fn no_message_is_acknowledged_without_its_effect(test: TestDb) {
    let harness = test.harness(&Script::ok());
    let message = message(&placed(1));
    let outcomes = [
        (
            "swallows",
            harness.deliver_message::<swallow>(&message).await.unwrap(),
        ),
        (
            "drops",
            harness.deliver_message::<drop_statement>(&message).await.unwrap(),
        ),
        (
            "bypasses",
            harness.deliver_message::<bypass>(&message).await.unwrap(),
        ),
    ];
    for (consumer, outcome) in outcomes {
        let effects = test.effects(consumer, 1).await;
        match outcome {
            Outcome::Handled => assert_eq!(effects, 1, "{consumer}: acknowledged without its effect"),
            Outcome::Failed | Outcome::Later => assert_eq!(effects, 0, "{consumer}"),
            other => panic!("{consumer}: {other:?}"),
        }
        if test.backend == Backend::Postgres && consumer != "drops" {
            assert_eq!(
                outcome,
                Outcome::Failed,
                "{consumer}: PostgreSQL ends such a transaction"
            );
        }
    }
}

on_every_backend!(no_message_is_acknowledged_without_its_effect);
