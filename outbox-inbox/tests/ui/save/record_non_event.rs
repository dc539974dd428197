//! Only events can be recorded.
use sea_orm::DatabaseTransaction;

struct NotAnEvent;

async fn record(tx: DatabaseTransaction) {
    let _ = outbox_sea_orm::record(&tx, [NotAnEvent]).await;
}

fn main() {}
