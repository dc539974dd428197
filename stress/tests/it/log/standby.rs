//! Commits that wait for a standby (`synchronous_standby_names`). They are in the log before they
//! are visible in the table.

use sea_orm::ConnectionTrait as _;

use super::{Place, pool, run_relay, until};

const PROBE: &str = "SELECT pg_logical_emit_message(true, 'probe', '')";
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query";

impl Place {
    /// From now on, commits wait for a missing standby, unless their session disables this.
    async fn commits_wait(&self) {
        self.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            .await;
        self.execute("SELECT pg_reload_conf()").await;
        // The server applies the setting asynchronously. The setting is in force when a probe's
        // commit waits for the standby.
        until("the setting is not in force", async || {
            let db = self.db.clone();
            let probe = tokio::spawn(async move { db.execute_unprepared(PROBE).await });
            while !probe.is_finished() {
                if self.number(&format!("{WAITING} LIKE '%probe%'")).await > 0 {
                    return true;
                }
            }
            false
        })
        .await;
    }

    async fn commits_go_on(&self) {
        self.execute("ALTER SYSTEM RESET synchronous_standby_names").await;
        self.execute("SELECT pg_reload_conf()").await;
    }

    async fn until_waiting(&self, commits: i64) {
        until("the commits do not wait", async || {
            self.number(&format!("{WAITING} NOT LIKE '%probe%'")).await >= commits
        })
        .await;
    }
}

/// A message cannot become pending before its commit is visible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_waiting_for_a_standby_are_not_lost_or_overtaken() {
    let Some(place) = Place::private(&[]).await else {
        return;
    };
    let all = format!("{}.>", place.name);
    let some = ["1", "3"].map(|account| format!("{}.account.{account}.>", place.name));
    let local = format!("{}?options[synchronous_commit]=local", place.url);
    let db = pool(&local, &place.name).await;
    let relay = place.relay_of(place.log_at(&place.url, &db), &db);
    let scenario = async {
        place.write(&["1", "2", "3"], 5).await;
        place.published().await;
        place.reconfigure(|config| config.subjects = some.to_vec()).await;
        place.commits_wait().await;
        let waiting = async {
            tokio::join!(
                place.write(&["1"], 1),
                place.write(&["2"], 1),
                place.write(&["3"], 1)
            )
        };
        let meanwhile = async {
            place.until_waiting(3).await;
            until("no message is published before it is visible", async || {
                let numbers = place.numbers().await;
                numbers["1"].len() == 6 && numbers["3"].len() == 6
            })
            .await;
            assert_eq!(
                place.number("SELECT count(*) FROM outbox_messages").await,
                15,
                "the commits can be seen already"
            );
            place.commits_go_on().await;
        };
        tokio::join!(waiting, meanwhile);
        place.write(&["1", "2", "3"], 5).await;
        until("the table did not adopt the rejected message", async || {
            place.in_table().await > 0
        })
        .await;
        place
            .reconfigure(|config| config.subjects = vec![all.clone()])
            .await;
        place.write(&["1", "2", "3"], 5).await;
        place.published().await;
    };
    run_relay(&relay, scenario).await;
    place.assert_balanced().await;
    place.close().await;
}

/// The relay cannot store its position, and its leases expire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_continues_after_its_writes_waited_for_a_standby() {
    let Some(place) = Place::private(&[]).await else {
        return;
    };
    place
        .run(async {
            place.write(&["1", "2", "3"], 5).await;
            place.published().await;
            for _ in 0..3 {
                place.commits_wait().await;
                let write = async {
                    tokio::join!(place.write(&["1"], 2), place.write(&["2", "3"], 2));
                };
                let release = async {
                    place.until_waiting(3).await;
                    place.commits_go_on().await;
                };
                tokio::join!(write, release);
                place.published().await;
            }
        })
        .await;
    place.assert_balanced().await;
    place.close().await;
}
