//! Debezium's engine, which reads an outbox from the log and routes its messages to nowhere.
//!
//! It runs `Router.java` of the examples with their properties, as a process that only counts. It must have read its slot once before the backlog is written:
//! what was recorded before its first start is not sent. Its rate is from the first message to the last, so that it does not pay for the start of Java.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use outbox_sea_orm::{OutboxConfig, OutboxConnection, record};
use sea_orm::ConnectionTrait as _;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};
use url::Url;

use crate::load::{AGGREGATES, Seen, account_id, fill_in_transactions};
use crate::log::ROWS;
use crate::raw::per_second;
use crate::servers::{Schema, Servers, count};
use crate::{Options, Result, check};

/// The longest wait for its start, for its messages and for its end.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where the engine is.
#[derive(Debug)]
pub(crate) struct Engine {
    jars: PathBuf,
    router: PathBuf,
}

/// What it has counted.
#[derive(Debug, Deserialize)]
struct Counted {
    messages: u64,
    seconds: f64,
}

impl Engine {
    /// `None` if the options do not say where it is.
    pub(crate) fn of(options: &Options) -> Option<Self> {
        Some(Self {
            jars: options.debezium_jars.clone()?,
            router: options.router.clone()?,
        })
    }

    /// Fills an outbox, lets the engine read it, and returns messages per second.
    pub(crate) async fn drain(&self, servers: &Servers, messages: u64) -> Result<f64> {
        let outbox = servers.outbox().await?;
        let publication = format!(
            "CREATE PUBLICATION {} FOR TABLE outbox_messages WITH (publish = 'insert')",
            outbox.name
        );
        outbox.db.execute_unprepared(&publication).await?;
        let folder = TempDir::new()?;
        let first = self.start(&outbox, &folder, 1)?;
        streams(&outbox).await?;
        let tx = OutboxConnection::new(outbox.db.clone(), OutboxConfig::default())
            .begin()
            .await?;
        record(&tx, [Seen::new(account_id(0), 0)]).await?;
        tx.commit().await?;
        counted(first).await?;
        outbox
            .db
            .execute_unprepared("DELETE FROM outbox_messages; DELETE FROM outbox_aggregates")
            .await?;
        fill_in_transactions(&outbox, AGGREGATES, messages, ROWS).await?;
        let found = counted(self.start(&outbox, &folder, messages)?).await?;
        check("messages routed", found.messages, messages)?;
        let drop = format!(
            "SELECT pg_drop_replication_slot('{0}'); DROP PUBLICATION {0}",
            outbox.name
        );
        outbox.db.execute_unprepared(&drop).await?;
        outbox.remove().await?;
        Ok(per_second(messages, Duration::from_secs_f64(found.seconds)))
    }

    /// Starts a process that ends its count at this many messages.
    fn start(&self, outbox: &Schema, folder: &TempDir, messages: u64) -> Result<Child> {
        let url = Url::parse(&outbox.url)?;
        let table = format!("{}.outbox_messages", outbox.name);
        let pattern = format!(
            "shop[.]{}[.]outbox_messages|outbox[.]heartbeat[.]shop",
            outbox.name
        );
        let offsets = folder.path().join("offsets");
        let of_source = [
            (
                "database.hostname",
                url.host_str().unwrap_or("localhost").to_owned(),
            ),
            ("database.port", url.port().unwrap_or(5432).to_string()),
            ("database.user", url.username().to_owned()),
            ("database.password", url.password().unwrap_or_default().to_owned()),
            ("database.dbname", url.path().trim_start_matches('/').to_owned()),
            ("offset.storage.file.filename", offsets.display().to_string()),
            ("table.include.list", table),
            ("publication.name", outbox.name.clone()),
            ("slot.name", outbox.name.clone()),
        ];
        let mut command = Command::new("java");
        command
            .arg("-Dorg.apache.logging.log4j.level=ERROR")
            .args(["-cp", &format!("{}/*", self.jars.display())])
            .arg(self.router.join("Router.java"))
            .arg(self.router.join("application.properties"))
            .arg(format!("debezium.predicates.ours.pattern={pattern}"))
            .arg(format!("router.count={messages}"));
        for (name, value) in of_source {
            command.arg(format!("debezium.source.{name}={value}"));
        }
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(child)
    }
}

/// Waits until the slot is read.
async fn streams(outbox: &Schema) -> Result<()> {
    let sql = format!(
        "SELECT count(*) AS n FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid \
         WHERE slot_name = '{}' AND state = 'streaming'",
        outbox.name
    );
    let streams = async {
        while count(&outbox.db, &sql).await? == 0 {
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    timeout(PATIENCE, streams)
        .await
        .map_err(|_| "Debezium's engine did not start in time")?
}

/// Waits for the count, and ends the engine, which stores its place then.
async fn counted(mut engine: Child) -> Result<Counted> {
    let out = engine.stdout.take().ok_or("the engine has no output")?;
    let mut lines = BufReader::new(out).lines();
    let line = timeout(PATIENCE, lines.next_line())
        .await
        .map_err(|_| "Debezium's engine did not send everything in time")??;
    let line = line.ok_or("Debezium's engine has failed; `cargo xtask debezium` says more")?;
    drop(engine.stdin.take());
    timeout(PATIENCE, engine.wait())
        .await
        .map_err(|_| "Debezium's engine did not end in time")??;
    Ok(serde_json::from_str(&line)?)
}
