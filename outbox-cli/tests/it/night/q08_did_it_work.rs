//! Did my retry work? Of three retried messages, one is published, one pending and one failed
//! again.

use outbox::core::{Fitness, Verdict};

use super::page::check;
use crate::operate::answer::ask;
use crate::operate::plant::{Planted, dead};
use crate::place::Kind;

#[tokio::test]
async fn an_operation_says_what_is_published_what_waits_and_what_has_failed_again() {
    let Some(planted) = Planted::open(Kind::Postgres).await else {
        return;
    };
    let (one, two, three) = (
        planted.placed("4710").await,
        planted.placed("4711").await,
        planted.placed("4712").await,
    );
    let (_, leases) = planted.relay(Fitness::Fit).await;
    for id in [one, two, three] {
        planted.settle(&leases, id, dead(true)).await;
    }
    let retried = check(&planted, "retry --type order.placed --yes", 0);
    let list = ask(&planted.place, "audit --kind retry -o name").expect(0);
    let show = format!("audit show {}", list.out.trim_end());
    assert!(
        retried.said.contains(&format!("next: outbox {show}")),
        "{retried:?}"
    );
    let waiting = ask(&planted.place, &show).expect(0);
    assert!(
        waiting
            .out
            .contains("now: 0 published, 3 to be published, 0 failed again"),
        "{waiting:?}"
    );
    planted
        .settle(&leases, one, Verdict::Published { keep: true })
        .await;
    planted.settle(&leases, two, dead(true)).await;
    let answer = check(&planted, &show, 3);
    for expected in [
        "now: 1 published, 1 to be published, 1 failed again",
        &format!("next: outbox why {two}"),
    ] {
        assert!(answer.out.contains(expected), "{expected}: {answer:?}");
    }
    planted.close().await;
}
