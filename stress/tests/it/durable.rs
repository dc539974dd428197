//! Only durable commits are published, even if the server shows a commit before it is on disk.
//!
//! Method: the test's own MariaDB without binary log. `strace` delays each sync until the server is
//! killed.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use outbox_core::message::PARTITIONS;
use outbox_core::store::FetchRequest;
use outbox_core::{OutboxStore as _, OwnerId, RelayHealth};
use outbox_sea_orm::SqlStore;
use outbox_test_servers::{SOON, Server};
use outbox_testing::backend_url;
use rustix::process::{Pid, Signal, kill_process};

use super::read_only::{Admin, int, until};

/// The server's settings. Otherwise the server commits statistics in the background, which blocks
/// statements.
const SETTINGS: [&str; 1] = ["--innodb-stats-persistent=OFF"];

const DELAY: &str = "inject=fsync,fdatasync:delay_enter=600s";

struct SlowSync(Child);

impl SlowSync {
    async fn of(strace: &str, server: &Server) -> Self {
        let pid = server.pid().unwrap();
        let mut command = Command::new(strace);
        command.args([
            "-f",
            "-q",
            "-e",
            "trace=fsync,fdatasync",
            "-e",
            DELAY,
            "-p",
            &pid.to_string(),
        ]);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let threads = format!("/proc/{pid}/task");
        let tracer = format!("TracerPid:\t{}", child.id());
        until("tracing", async || {
            let mut threads = fs::read_dir(&threads).unwrap().flatten();
            let status = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("status")).ok();
            threads
                .all(|thread| status(thread).is_none_or(|status| status.lines().any(|line| line == tracer)))
        })
        .await;
        Self(child)
    }

    fn kill(self, server: &mut Server) {
        let pid = server.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        kill_process(pid.unwrap(), Signal::KILL).unwrap();
        drop(self);
        server.kill().unwrap();
    }
}

impl Drop for SlowSync {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn commit_lost_by_mariadb_is_not_published() {
    let (Some(program), Some(strace)) = (
        backend_url("OUTBOX_TEST_MARIADB_BIN"),
        backend_url("OUTBOX_TEST_STRACE_BIN"),
    ) else {
        return;
    };
    let mut server = Server::mariadb(Path::new(&program), &SETTINGS).unwrap();
    server.start().await.unwrap();
    let admin = Admin(server.connect(2).await.unwrap());
    outbox_sea_orm::migration::migrate(&admin.0).await.unwrap();
    admin.run("SET GLOBAL innodb_flush_log_at_trx_commit = 1").await;
    let store = SqlStore::new(server.connect(3).await.unwrap());
    let owner = OwnerId::fresh();
    store
        .announce(owner, SOON, &RelayHealth::Unknown.into())
        .await
        .unwrap();
    let leases = store.acquire(owner, SOON, PARTITIONS).await.unwrap();
    admin.record(1).await;

    let slow = SlowSync::of(&strace, &server).await;
    // The server waits for the sync of the first commit, and does not write the log of the second.
    let mut commits = Vec::new();
    for lock in [2, 3] {
        let writer = Admin(server.connect(1).await.unwrap());
        commits.push(tokio::spawn(async move { writer.try_record(lock).await }));
        until("a visible commit", async || admin.unpublished().await == lock).await;
    }
    let mut fetch = tokio::spawn(async move {
        let request = FetchRequest {
            leases: &leases,
            limit: 10.try_into().unwrap(),
            bytes: usize::MAX,
            in_flight: &[],
        };
        store.fetch(request).await
    });
    let waiting = "SELECT count(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE outbox\\_relays SET expires\\_at%'";
    tokio::select! {
        fetched = &mut fetch => panic!("returned before the commit was durable: {fetched:?}"),
        () = until("the durable write", async || int(&admin.0, waiting).await > 0) => {}
    }
    slow.kill(&mut server);
    assert!(fetch.await.unwrap().is_err());
    for commit in commits {
        assert!(commit.await.unwrap().is_err(), "the writer got no answer");
    }

    server.start().await.unwrap();
    let admin = Admin(server.connect(1).await.unwrap());
    assert!(admin.unpublished().await < 3, "the server has lost a commit");
}
