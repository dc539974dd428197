//! A primary that dies under load, and a standby that is promoted.

use std::collections::BTreeSet;
use std::path::Path;

use futures_util::future::join_all;
use outbox_test_servers::Server;
use outbox_testing::backend_url;
use sea_orm::{ConnectionTrait as _, DatabaseConnection, Statement};

use super::proxy::Proxy;
use super::{Place, modern, number, until};

const STANDBY: &str = "standby";
const ACCOUNTS: [&str; 4] = ["1", "2", "3", "4"];
const LOAD: u64 = 20;
const SLOTS_FOLLOW: u32 = 17;

struct Pair {
    primary: Server,
    standby: Server,
    proxy: Proxy,
}

impl Pair {
    async fn open(program: &str, version: u32) -> Self {
        let follows = version >= SLOTS_FOLLOW;
        let mut settings = vec!["wal_level=logical", "synchronous_standby_names=*"];
        // Because of `synchronized_standby_slots`, the relay receives no commit that the standby
        // does not have.
        settings.extend(follows.then_some("synchronized_standby_slots=standby"));
        let mut primary = Server::postgres(Path::new(program), &settings).unwrap();
        primary.start().await.unwrap();
        let db = primary.connect(1).await.unwrap();
        let slot = format!("SELECT pg_create_physical_replication_slot('{STANDBY}', true)");
        db.execute_unprepared(&slot).await.unwrap();
        db.close().await.unwrap();
        primary.kill().unwrap();

        let mut settings = vec!["wal_level=logical", "hot_standby_feedback=on"];
        settings.extend(follows.then_some("sync_replication_slots=on"));
        let mut standby = primary.standby(STANDBY, &settings).unwrap();
        primary.start().await.unwrap();
        standby.start().await.unwrap();
        let proxy = Proxy::in_front_of(primary.url()).await;
        Self {
            primary,
            standby,
            proxy,
        }
    }

    async fn fail_over(&mut self, standby: &DatabaseConnection) {
        self.primary.kill().unwrap();
        self.proxy.lead_to(self.standby.url());
        let others = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
        until("no relay connects to the standby server", async || {
            number(standby, others).await > 0
        })
        .await;
        let promoted = number(standby, "SELECT pg_promote()::int").await;
        assert_eq!(promoted, 1, "the standby server does not take over");
    }
}

impl Place {
    async fn write_until_it_fails(&self, account: &str) {
        while self.try_write_with(account, 1, |_| {}).await.is_ok() {}
    }

    async fn count_committed(&self, account: &str) {
        let sql = format!("SELECT count(*) FROM outbox_messages WHERE aggregate_id = '{account}'");
        let there = u64::try_from(self.number(&sql).await).unwrap();
        let known = self.committed(account);
        assert!(
            (known..=known + 1).contains(&there),
            "{known} commits of {account} succeeded, and {there} are there"
        );
        let mut committed = self.committed.lock().unwrap();
        committed.insert(account.to_owned(), there);
    }

    async fn recorded(&self) -> BTreeSet<String> {
        let sql = "SELECT id::text AS id FROM outbox_messages";
        let rows = Statement::from_string(self.db.get_database_backend(), sql);
        let rows = self.db.query_all_raw(rows).await.unwrap();
        rows.iter().map(|row| row.try_get("", "id").unwrap()).collect()
    }
}

/// With a synchronized slot (PostgreSQL 17 or later), the log continues, and no lost event is
/// published. Without one, unpublished messages become pending, and the table relay publishes them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_to_a_standby_under_load_loses_no_message() {
    let (Some(version), Some(program)) = (modern::version(), backend_url("OUTBOX_TEST_POSTGRES_BIN")) else {
        return;
    };
    let Some(nats_url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let mut pair = Pair::open(&program, version).await;
    let place = Place::make(None, pair.proxy.url.clone(), &nats_url).await;
    let standby = pair.standby.connect(1).await.unwrap();
    let follows = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}_log' AND to_jsonb(pg_replication_slots) @> '{{\"synced\": true, \"temporary\": false}}'",
        place.name
    );
    place
        .run(async {
            place.write(&ACCOUNTS, 10).await;
            place.published().await;
            if version >= SLOTS_FOLLOW {
                until("the standby server has no copy of the slot", async || {
                    place.write(&ACCOUNTS, 1).await;
                    number(&standby, &follows).await == 1
                })
                .await;
            }
            let writers = join_all(ACCOUNTS.map(|account| place.write_until_it_fails(account)));
            let before = ACCOUNTS.map(|account| place.committed(account));
            let failover = async {
                until("the writers do not write", async || {
                    let mut accounts = ACCOUNTS.iter().zip(before);
                    accounts.all(|(account, before)| place.committed(account) >= before + LOAD)
                })
                .await;
                pair.fail_over(&standby).await;
            };
            tokio::join!(writers, failover);
            for account in ACCOUNTS {
                place.count_committed(account).await;
            }
            place.write(&ACCOUNTS, 10).await;
            place.published().await;
        })
        .await;
    if version >= SLOTS_FOLLOW {
        assert_eq!(number(&standby, &follows).await, 1, "the copy was not used");
        assert_eq!(place.rows(1).await, 0, "the table has published");
        let arrived = place.arrived().await.into_iter().map(|message| message.id);
        assert_eq!(arrived.collect::<BTreeSet<_>>(), place.recorded().await);
    }
    place.assert_balanced().await;
    place.close().await;
}
