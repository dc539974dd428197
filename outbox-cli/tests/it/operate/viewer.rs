//! Read-only commands with viewer rights in the database and on NATS.
//!
//! Method: logins and users as printed by `outbox print`. The log of the NATS server must show
//! no denied request.

use outbox::core::Fitness;
use outbox_admin::rights::Role;

use super::answer::{Answer, logged_in};
use super::permissions::Server;
use super::plant::{Planted, dead, failed};
use super::rights::{Login, READS};
use crate::place::{Kind, on_both_servers};

/// Commands that read messages on the stream and need a reader's permissions.
const READ_THE_STREAM: [&str; 4] = [
    "timeline order/0",
    "prove --since 1h --until 0s",
    "reconcile --since 1h --until 0s",
    "why order/0",
];

const NOT_SHOWN: [&str; 5] = ["denied", "denies", "cannot be", "not seen", "no answer within"];

fn not_shown(answer: &Answer) -> Option<&str> {
    let mut lines = answer.out.lines().chain(answer.said.lines());
    lines.find(|line| NOT_SHOWN.iter().any(|words| line.contains(words)))
}

async fn who_may_only_look_sees_everything(kind: Kind) {
    let Some(mut planted) = Planted::open(kind).await else {
        return;
    };
    let server = Server::start("OUTBOX_TEST_NATS_CLUSTER_BIN", &planted.place.name).await;
    let Some(server) = server else {
        return planted.close().await;
    };
    planted.place.nats = server.url("admin");
    planted.placed("0").await;
    planted.publish().await;
    planted.handle().await;
    let (halting, backing_off) = (planted.placed("1").await, planted.placed("2").await);
    let (_, leases) = planted.relay(Fitness::Fit).await;
    planted.settle(&leases, halting, dead(true)).await;
    planted.settle(&leases, backing_off, failed()).await;
    let place = &planted.place;
    let viewer = Login::new(kind, place, &[Role::Viewer]).await;
    let ask = |command: &str| {
        let user = match READ_THE_STREAM.contains(&command) {
            true => "operator",
            false => "viewer",
        };
        logged_in(place, &viewer.url, &server.url(user), command)
    };
    let letter = ask("dead-letters list -o name").expect(0).out;
    let shows = [
        format!("show {halting}"),
        format!("dead-letters show {}", letter.trim_end()),
    ];
    for command in READS.map(str::to_owned).into_iter().chain(shows) {
        let answer = ask(&command);
        // Nothing is paused or changed.
        let is_empty = matches!(command.as_str(), "pause --list" | "audit") && answer.code == Some(5);
        assert!(
            is_empty || matches!(answer.code, Some(0 | 3 | 4)),
            "{command}: {answer:?}"
        );
        assert_eq!(not_shown(&answer), None, "{command}: {answer:?}");
    }
    assert_eq!(
        server.refused(),
        [""; 0],
        "a request that the printed permissions do not grant"
    );
    // Without a reader's permissions, a command reports the denial.
    let words = ["why", "order/0"];
    let unread = logged_in(place, &viewer.url, &server.url("viewer"), &words);
    assert!(!unread.says("on-stream"), "{unread:?}");
    let refused = server.refused();
    assert!(
        refused
            .iter()
            .any(|line| line.contains("viewer") && line.contains("CONSUMER.CREATE")),
        "{refused:?}"
    );
    viewer.close(kind, place).await;
    planted.close().await;
}

on_both_servers!(who_may_only_look_sees_everything);
