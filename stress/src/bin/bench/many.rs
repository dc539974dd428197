//! The cost of one event per row in bulk inserts.

use std::time::Instant;

use outbox_sea_orm::SaveManyWithEvents as _;
use sea_orm::{ConnectionTrait as _, EntityTrait as _, Set, TransactionTrait as _};

use crate::figure::{Figure, Series};
use crate::load::{Moved, account_id};
use crate::raw::per_second;
use crate::servers::Servers;
use crate::write::account;
use crate::{Options, Result, check};

const ROWS: u64 = 10_000;
const CHUNK: usize = 1_000;

pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let rounds = options.size(15, 6);
    let mut rates = Series::default();
    for _ in options.runs("write many") {
        rates.add("events", rate(servers, rounds, true).await?);
        rates.add("plain", rate(servers, rounds, false).await?);
    }
    Ok(vec![rates.against(
        "write_many_insert",
        "rows/s",
        "events",
        "plain",
    )])
}

async fn rate(servers: &Servers, rounds: u64, events: bool) -> Result<f64> {
    let outbox = servers.outbox().await?;
    let table = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)";
    outbox.db.execute_unprepared(table).await?;
    let db = outbox.pool(1).await?;
    let accounts = (0..rounds * ROWS).map(|n| account::ActiveModel {
        id: Set(account_id(n)),
        balance: Set(0),
    });
    let mut accounts: Vec<_> = accounts.collect();
    let mut written = 0;
    let start = Instant::now();
    while !accounts.is_empty() {
        let rows = accounts.split_off(accounts.len() - usize::try_from(ROWS)?);
        if events {
            let moved = |account: &account::Model| [Moved::new(account.id, account.balance)];
            let saved = account::Entity::insert_many_with_events(rows, &db, moved).await?;
            written += saved.len();
        } else {
            let tx = db.begin().await?;
            for chunk in rows.chunks(CHUNK) {
                let insert = account::Entity::insert_many(chunk.iter().cloned());
                written += insert.exec_with_returning(&tx).await?.len();
            }
            tx.commit().await?;
        }
    }
    let elapsed = start.elapsed();
    check("rows written", written.try_into()?, rounds * ROWS)?;
    let messages = if events { rounds * ROWS } else { 0 };
    check("messages recorded", outbox.messages().await?, messages)?;
    db.close().await?;
    outbox.remove().await?;
    Ok(per_second(rounds * ROWS, elapsed))
}
