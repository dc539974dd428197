//! A relay on a MariaDB server that becomes `read_only`.
//!
//! Method: the relay closes a rejected session (error 1290), so the number of sessions proves that
//! the relay retries.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use outbox_core::retry::Backoff;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{DomainEvent, Relay, RelayConfig};
use outbox_sea_orm::{OutboxConfig, OutboxConnection, SqlStore};
use outbox_test_servers::{SOON, Server};
use outbox_testing::{MemoryBroker, backend_url};
use sea_orm::{ConnectOptions, ConnectionTrait as _, Database, DatabaseConnection, Statement};
use serde::Serialize;

const SESSIONS: i64 = 8;

#[derive(Debug, DomainEvent, Serialize)]
#[domain_event(aggregate = "lock", name = "turned")]
struct Turned {
    #[domain_event(aggregate_id)]
    lock: i64,
}

pub(crate) async fn int(db: &DatabaseConnection, sql: &str) -> i64 {
    let statement = Statement::from_string(db.get_database_backend(), sql);
    let row = db.query_one_raw(statement).await.unwrap().unwrap();
    row.try_get_by_index(0).unwrap()
}

pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let outcome = tokio::time::timeout(SOON, wait).await;
    outcome.unwrap_or_else(|_| panic!("{what} did not happen"));
}

pub(crate) struct Admin(pub(crate) DatabaseConnection);

impl Admin {
    pub(crate) async fn run(&self, sql: &str) {
        self.0.execute_unprepared(sql).await.unwrap();
    }

    pub(crate) async fn record(&self, lock: i64) {
        self.try_record(lock).await.unwrap();
    }

    pub(crate) async fn try_record(&self, lock: i64) -> Result<(), Box<dyn Error + Send + Sync>> {
        let outbox = OutboxConnection::new(self.0.clone(), OutboxConfig::default());
        let tx = outbox.begin().await?;
        outbox_sea_orm::record(&tx, [Turned { lock }]).await?;
        Ok(tx.commit().await?)
    }

    pub(crate) async fn unpublished(&self) -> i64 {
        int(&self.0, "SELECT count(*) FROM outbox_messages WHERE status <> 1").await
    }

    async fn until_refused(&self) {
        let sessions = async || {
            let sql = "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status \
                       WHERE variable_name = 'CONNECTIONS'";
            int(&self.0, sql).await
        };
        let before = sessions().await;
        until("trying again", async || sessions().await >= before + SESSIONS).await;
    }
}

#[tokio::test]
async fn relay_waits_while_mariadb_is_read_only() {
    let Some(program) = backend_url("OUTBOX_TEST_MARIADB_BIN") else {
        return;
    };
    let mut server = Server::mariadb(Path::new(&program), &[]).unwrap();
    server.start().await.unwrap();
    let admin = Admin(server.connect(1).await.unwrap());
    outbox_sea_orm::migration::migrate(&admin.0).await.unwrap();
    admin
        .run("CREATE USER 'relay'@'127.0.0.1' IDENTIFIED BY 'relay'")
        .await;
    admin
        .run("GRANT ALL PRIVILEGES ON shop.* TO 'relay'@'127.0.0.1'")
        .await;
    admin.record(1).await;
    admin.run("SET GLOBAL read_only = 1").await;

    let mut options = ConnectOptions::new(server.url().replace("shop:shop", "relay:relay"));
    options.max_connections(3).sqlx_logging(false);
    let store = SqlStore::new(Database::connect(options).await.unwrap());
    let backoff = Backoff {
        min: Duration::from_millis(5),
        max: Duration::from_millis(50),
    };
    let config = RelayConfig::default()
        .backoff(backoff)
        .lease_ttl(Duration::from_millis(1_500))
        .poll_max(Duration::from_millis(50));
    let broker = MemoryBroker::new();
    let relay = Relay::new(store, broker.publisher()).with_config(config);
    let shutdown = CancellationToken::new();
    let scenario = async {
        admin.until_refused().await;
        assert_eq!(broker.publishes(), 0);
        admin.run("SET GLOBAL read_only = 0").await;
        until("publishing", async || admin.unpublished().await == 0).await;

        admin.run("SET GLOBAL read_only = 1").await;
        admin.record(2).await;
        admin.until_refused().await;
        assert_eq!(admin.unpublished().await, 1);
        admin.run("SET GLOBAL read_only = 0").await;
        until("publishing again", async || admin.unpublished().await == 0).await;
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    let report = report.unwrap();
    assert_eq!((report.published, report.dead_letters), (2, 0), "{report:?}");
}
