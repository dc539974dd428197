//! Three ways for a message to be in the log: a row that stays, a row that its own transaction deletes, and no row at all.
//!
//! All give the message its number by the head row of its aggregate, in transactions of one message. The server decodes each log alone, without sending it. The
//! first way is ours and the baseline of the others. Invariant: the log gives as many messages as were written.

use std::time::Instant;

use sea_orm::{ConnectionTrait as _, DatabaseConnection, DbBackend, Statement, TransactionTrait as _};
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::figure::Figure;
use crate::load::{AGGREGATES, Moved, account_id};
use crate::log::{log_of, on_logical_server};
use crate::processor::{self, Postmaster};
use crate::raw::per_second;
use crate::servers::{Servers, count};
use crate::write::SEQUENCED_BY_HAND;
use crate::{Failure, Options, Result, check};

const WRITERS: u64 = 4;
/// Bytes of what a row has besides its payload, in the log.
const ENVELOPE_BYTES: usize = 180;
const DELETE: &str = "DELETE FROM outbox_messages WHERE id = $1";
const EMIT: &str = "WITH head AS (INSERT INTO outbox_aggregates AS head (aggregate_type, aggregate_id, last_sequence) \
     VALUES ('account', $1, 1) ON CONFLICT (aggregate_type, aggregate_id) \
     DO UPDATE SET last_sequence = head.last_sequence + 1 RETURNING last_sequence) \
     SELECT pg_logical_emit_message(true, 'outbox', $2::bytea) FROM head";

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    Row,
    DeletedRow,
    NoRow,
}

/// What each run cost; one element per run. Times are of the server's processors, in microseconds per message.
#[derive(Debug, Default)]
struct Costs {
    rates: Vec<f64>,
    write: Vec<f64>,
    decode: Vec<f64>,
    vacuum: Vec<f64>,
    log_bytes: Vec<f64>,
    table_bytes: Vec<f64>,
}

/// Measures this group.
pub(crate) async fn figures(options: &Options) -> Result<Vec<Figure>> {
    on_logical_server(options, measure).await
}

async fn measure(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let messages = options.size(100_000, 20_000);
    let [mut row, mut deleted, mut none]: [Costs; 3] = Default::default();
    for run in 1..=options.runs() {
        eprintln!("ways: run {run} of {}", options.runs());
        deleted.add(servers, Way::DeletedRow, messages).await?;
        row.add(servers, Way::Row, messages).await?;
        none.add(servers, Way::NoRow, messages).await?;
    }
    let mut figures = Vec::new();
    for (way, costs) in [("deleted", &deleted), ("no_row", &none)] {
        for (what, unit, of) in COSTS {
            let name = format!("ways_{way}_{what}");
            figures.push(Figure::against(name, unit, of(costs), of(&row)));
        }
    }
    Ok(figures)
}

type Cost = fn(&Costs) -> &[f64];

const COSTS: [(&str, &str, Cost); 6] = [
    ("write", "events/s", |costs| &costs.rates),
    ("server_write", "us/event", |costs| &costs.write),
    ("server_decode", "us/event", |costs| &costs.decode),
    ("server_vacuum", "us/event", |costs| &costs.vacuum),
    ("log", "bytes/event", |costs| &costs.log_bytes),
    ("table", "bytes/event", |costs| &costs.table_bytes),
];

impl Costs {
    async fn add(&mut self, servers: &Servers, way: Way, messages: u64) -> Result<()> {
        let outbox = servers.outbox().await?;
        let log = log_of(&outbox).await?;
        log.init().await?;
        let server = Postmaster::of(&outbox.db).await?;
        let server = Some(server.ok_or("the group `ways` needs a server on this machine")?);
        // Closed at the end: the time of a backend that has ended is known when its server has noticed it.
        let writers = outbox.pool(u32::try_from(WRITERS)?).await?;
        let each = |total: f64| total / messages as f64;
        let micros = |seconds: Option<f64>| seconds.map(|seconds| each(seconds * 1e6));

        let position = "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8 AS n";
        let (before, start) = (count(&outbox.db, position).await?, Instant::now());
        let ((), seconds) = processor::during(server, write(&writers, way, messages)).await?;
        self.rates.push(per_second(messages, start.elapsed()));
        self.write.extend(micros(seconds));
        let written = count(&outbox.db, position).await? - before;
        self.log_bytes.push(each(written as f64));

        let decode = async { count(&outbox.db, &decode(&outbox.name, way)).await };
        let (decoded, seconds) = processor::during(server, decode).await?;
        check("messages decoded", decoded, messages)?;
        self.decode.extend(micros(seconds));

        let vacuum = async {
            let vacuum = "VACUUM (INDEX_CLEANUP ON) outbox_messages";
            Ok(outbox.db.execute_unprepared(vacuum).await?)
        };
        let (_, seconds) = processor::during(server, vacuum).await?;
        self.vacuum.extend(micros(seconds));
        let size = "SELECT pg_total_relation_size('outbox_messages')::int8 AS n";
        self.table_bytes.push(each(count(&outbox.db, size).await? as f64));
        let left = if way == Way::Row { messages } else { 0 };
        check("messages in the table", outbox.messages().await?, left)?;
        writers.close().await?;
        log.drop().await?;
        outbox.remove().await
    }
}

/// The number of messages that the log gives, in the protocol and the format that the log relay reads.
fn decode(name: &str, way: Way) -> String {
    // `I` is an inserted row, `M` a message. The rest are beginnings and ends of transactions, deletions, and descriptions of tables.
    let kind = if way == Way::NoRow { 'M' } else { 'I' };
    format!(
        "SELECT count(*) FILTER (WHERE get_byte(data, 0) = ascii('{kind}'))::int8 AS n FROM pg_logical_slot_peek_binary_changes('{name}_log', NULL, NULL, \
         'proto_version', '1', 'publication_names', '{name}_log', 'binary', 'true', 'messages', 'true')"
    )
}

/// Writes the messages, one in a transaction, to all aggregates in turn.
async fn write(db: &DatabaseConnection, way: Way, messages: u64) -> Result<()> {
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let db = db.clone();
        writers.spawn(async move {
            for n in (writer..messages).step_by(usize::try_from(WRITERS)?) {
                write_one(&db, way, account_id(n % AGGREGATES)).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    for written in writers.join_all().await {
        written?;
    }
    Ok(())
}

async fn write_one(db: &DatabaseConnection, way: Way, account: i64) -> Result<()> {
    let mut payload = serde_json::to_vec(&Moved::new(account, 0))?;
    let tx = db.begin().await?;
    let execute = async |sql: &str, values: Vec<sea_orm::Value>| {
        tx.execute_raw(Statement::from_sql_and_values(DbBackend::Postgres, sql, values))
            .await
    };
    if way == Way::NoRow {
        payload.resize(payload.len() + ENVELOPE_BYTES, b' ');
        execute(EMIT, vec![account.to_string().into(), payload.into()]).await?;
    } else {
        let id = Uuid::now_v7();
        let partition = i16::try_from(account % 64)?;
        let values = vec![
            id.into(),
            partition.into(),
            account.to_string().into(),
            payload.into(),
        ];
        execute(SEQUENCED_BY_HAND, values).await?;
        if way == Way::DeletedRow {
            execute(DELETE, vec![id.into()]).await?;
        }
    }
    Ok(tx.commit().await?)
}
