//! The cost of saving many rows with an event each in one call, against the same multi-row statements written by hand, with as few rows in memory.

use std::time::Instant;

use outbox_sea_orm::SaveManyWithEvents as _;
use sea_orm::sea_query::{ArrayType, Expr, ExprTrait as _};
use sea_orm::{
    ColumnTrait as _, ConnectionTrait as _, DatabaseConnection, DatabaseTransaction, DbBackend,
    EntityTrait as _, Set, Statement, TransactionTrait as _, Value,
};
use uuid::Uuid;

use crate::figure::{Figure, Target};
use crate::load::{Moved, account_id};
use crate::raw::per_second;
use crate::servers::Servers;
use crate::write::account;
use crate::{Options, Result, check};

/// Rows of one transaction.
const ROWS: u64 = 10_000;
/// Rows of one statement, by hand as in the library.
const CHUNK: usize = 1_000;

/// The head rows and the messages of some accounts, in one statement.
const BY_HAND: &str = "WITH head AS (INSERT INTO outbox_aggregates AS head (aggregate_type, aggregate_id, last_sequence) \
     SELECT 'account', id, 1 FROM unnest($3::text[]) AS id ON CONFLICT (aggregate_type, aggregate_id) \
     DO UPDATE SET last_sequence = head.last_sequence + 1 RETURNING aggregate_id, last_sequence) \
     INSERT INTO outbox_messages (id, partition_no, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, \
     payload, headers) SELECT m.id, m.partition_no, 'account', m.aggregate_id, head.last_sequence, 'account.moved', 1, \
     'application/json', m.payload, '{}' FROM unnest($1, $2, $3, $4) WITH ORDINALITY AS m (id, partition_no, aggregate_id, payload, ord) \
     JOIN head ON head.aggregate_id = m.aggregate_id ORDER BY m.ord";

const KEYS: &str = "SELECT id FROM accounts WHERE id >= 0 ORDER BY id FOR UPDATE";
const UPDATE: &str = "UPDATE accounts SET balance = balance + 1 WHERE id = ANY($1) RETURNING id, balance";
const DELETE: &str = "DELETE FROM accounts WHERE id = ANY($1) RETURNING id, balance";

/// Rows per second that were inserted, updated and deleted.
type Rates = [f64; 3];

/// Measures inserts, updates and deletions.
pub(crate) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let rounds = options.size(5, 2);
    let (mut library, mut by_hand): (Vec<Rates>, Vec<Rates>) = (Vec::new(), Vec::new());
    for run in 1..=options.runs() {
        eprintln!("write many: run {run} of {}", options.runs());
        library.push(rates(servers, rounds, false).await?);
        by_hand.push(rates(servers, rounds, true).await?);
    }
    let figure = |name, n: usize| {
        let of = |rates: &[Rates]| rates.iter().map(|rates| rates[n]).collect::<Vec<_>>();
        Figure::against(name, "rows/s", &of(&library), &of(&by_hand)).target(Target::AtLeast(0.8))
    };
    Ok(vec![
        figure("write_many_insert", 0),
        figure("write_many_update", 1),
        figure("write_many_delete", 2),
    ])
}

async fn rates(servers: &Servers, rounds: u64, by_hand: bool) -> Result<Rates> {
    let outbox = servers.outbox().await?;
    let table = "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)";
    outbox.db.execute_unprepared(table).await?;
    let db = outbox.pool(1).await?;
    let mut seconds = [0.0; 3];
    for round in 0..rounds {
        let ids = round * ROWS..(round + 1) * ROWS;
        let accounts: Vec<_> = ids
            .map(|n| account::ActiveModel {
                id: Set(account_id(n)),
                balance: Set(0),
            })
            .collect();
        for (n, seconds) in seconds.iter_mut().enumerate() {
            let accounts = accounts.clone();
            let start = Instant::now();
            let rows = match (n, by_hand) {
                (0, false) => insert(&db, accounts).await?,
                (1, false) => update(&db).await?,
                (_, false) => delete(&db).await?,
                (n, true) => written_by_hand(&db, n, accounts).await?,
            };
            *seconds += start.elapsed().as_secs_f64();
            check("rows written", rows, ROWS)?;
        }
    }
    check("messages recorded", outbox.messages().await?, 3 * rounds * ROWS)?;
    db.close().await?;
    outbox.remove().await?;
    let rate = |seconds| per_second(rounds * ROWS, std::time::Duration::from_secs_f64(seconds));
    Ok(seconds.map(rate))
}

fn moved(account: &account::Model) -> [Moved; 1] {
    [Moved::new(account.id, account.balance)]
}

async fn insert(db: &DatabaseConnection, accounts: Vec<account::ActiveModel>) -> Result<u64> {
    let saved = account::Entity::insert_many_with_events(accounts, db, moved).await?;
    Ok(saved.len().try_into()?)
}

async fn update(db: &DatabaseConnection) -> Result<u64> {
    let balance = account::Column::Balance;
    let change = account::Entity::update_many().col_expr(balance, Expr::col(balance).add(1));
    let all = account::Column::Id.gte(0);
    Ok(account::Entity::update_many_with_events(change, all, db, moved).await?)
}

async fn delete(db: &DatabaseConnection) -> Result<u64> {
    Ok(account::Entity::delete_many_with_events(account::Column::Id.gte(0), db, moved).await?)
}

/// One transaction: an insert (0), an update (1) or a deletion.
async fn written_by_hand(
    db: &DatabaseConnection,
    what: usize,
    accounts: Vec<account::ActiveModel>,
) -> Result<u64> {
    let tx = db.begin().await?;
    let mut rows = 0;
    match what {
        0 => {
            for chunk in accounts.chunks(CHUNK) {
                let insert = account::Entity::insert_many(chunk.iter().cloned());
                rows += record(&tx, &insert.exec_with_returning(&tx).await?).await?;
            }
        }
        1 => rows += change_by_hand(&tx, UPDATE).await?,
        _ => rows += change_by_hand(&tx, DELETE).await?,
    }
    tx.commit().await?;
    Ok(rows)
}

/// Changes all rows, a chunk at a time, so that no more of them are in memory. Their keys are locked first: between two chunks nobody may change which rows
/// match.
async fn change_by_hand(tx: &DatabaseTransaction, change: &str) -> Result<u64> {
    let keys = Statement::from_string(DbBackend::Postgres, KEYS);
    let keys = tx.query_all_raw(keys).await?;
    let ids = keys.iter().map(|row| row.try_get_by_index::<i64>(0));
    let ids: Vec<i64> = ids.collect::<std::result::Result<_, _>>()?;
    let mut rows = 0;
    for ids in ids.chunks(CHUNK) {
        let ids = ids.iter().map(|id| Value::from(*id)).collect();
        let ids = Value::Array(ArrayType::BigInt, Some(Box::new(ids)));
        let change = Statement::from_sql_and_values(DbBackend::Postgres, change, [ids]);
        let changed = account::Entity::find().from_raw_sql(change).all(tx).await?;
        rows += record(tx, &changed).await?;
    }
    Ok(rows)
}

async fn record(tx: &DatabaseTransaction, accounts: &[account::Model]) -> Result<u64> {
    let mut values: [Vec<Value>; 4] = Default::default();
    for account in accounts {
        let payload = serde_json::to_vec(&Moved::new(account.id, account.balance))?;
        values[0].push(Uuid::now_v7().into());
        values[1].push(i16::try_from(account.id % 64)?.into());
        values[2].push(account.id.to_string().into());
        values[3].push(payload.into());
    }
    let kinds = [
        ArrayType::Uuid,
        ArrayType::SmallInt,
        ArrayType::String,
        ArrayType::Bytes,
    ];
    let arrays = kinds
        .into_iter()
        .zip(values)
        .map(|(kind, values)| Value::Array(kind, Some(Box::new(values))));
    let insert = Statement::from_sql_and_values(DbBackend::Postgres, BY_HAND, arrays);
    Ok(tx.execute_raw(insert).await?.rows_affected())
}
