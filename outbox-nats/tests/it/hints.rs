//! Hints reach the relays of other processes, at a bounded rate, without loops.
//!
//! All tests of a process share `outbox_core::wake`, so these tests run one after the other.

use std::time::Instant;

use futures_util::{FutureExt as _, StreamExt as _};
use outbox_core::shutdown::CancellationToken;
use outbox_core::wake::{self, Wake};
use outbox_nats::async_nats::{Client, Subscriber};
use outbox_nats::{connect_options, hints};
use outbox_testing::{backend_url, eventually};
use tokio::sync::Mutex;

use crate::environment::{SOON, connected};
use crate::printed_users::{NEWEST, OLDEST, User, Users};

static ALONE: Mutex<()> = Mutex::const_new(());

async fn until_quiet(seen: &mut Subscriber, least: usize) -> usize {
    let mut count = 0;
    let counting = async {
        loop {
            match tokio::time::timeout(10 * hints::INTERVAL, seen.next()).await {
                Ok(_) => count += 1,
                Err(_) if count < least => {}
                Err(_) => return,
            }
        }
    };
    let counted = tokio::time::timeout(SOON, counting).await;
    assert!(
        counted.is_ok(),
        "{count} hints: they go round in circles, or fewer than {least} arrive"
    );
    count
}

#[tokio::test]
async fn hints_are_few_and_do_not_echo() {
    let Some(url) = backend_url("OUTBOX_TEST_NATS_URL") else {
        return;
    };
    let subject = format!("hint-{}", outbox_core::MessageId::fresh());
    few_and_no_echo(&subject, async || connected(&*url, connect_options()).await).await;
}

async fn printed_permissions_suffice_for_hints(variable: &'static str) {
    let printed = [User::new("hints", &["hints"])];
    let Some(users) = Users::start(variable, &printed).await else {
        return;
    };
    few_and_no_echo(hints::DEFAULT_SUBJECT, async || users.client("hints").await).await;
    assert_eq!(
        users.refused(),
        [""; 0],
        "a request that the printed permissions do not grant"
    );
    let client = users.client("hints").await;
    client.publish("other.hint", "".into()).await.unwrap();
    let _open = client.subscribe("other.hint").await.unwrap();
    client.flush().await.unwrap();
    eventually("two refusals", async || users.refused().len() == 2).await;
}

#[tokio::test]
async fn printed_permissions_suffice_for_hints_on_the_newest_server() {
    printed_permissions_suffice_for_hints(NEWEST).await;
}

#[tokio::test]
async fn printed_permissions_suffice_for_hints_on_the_oldest_server() {
    printed_permissions_suffice_for_hints(OLDEST).await;
}

async fn few_and_no_echo(subject: &str, connected: impl AsyncFn() -> Client) {
    let _alone = ALONE.lock().await;
    let subject = subject.to_owned();
    let stop = CancellationToken::new();
    let client = connected().await;
    let mut seen = client.subscribe(subject.clone()).await.unwrap();
    client.flush().await.unwrap();
    let mut relay = wake::Listener::new();
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let client = connected().await;
        tasks.push(tokio::spawn(hints::send(
            client.clone(),
            subject.clone(),
            stop.clone(),
        )));
        tasks.push(tokio::spawn(hints::listen(client, subject.clone(), stop.clone())));
    }
    eventually("a hint", || {
        wake::notify();
        let mut remote = false;
        while let Some(woken) = relay.woken().now_or_never() {
            remote |= woken == Wake::Remote;
        }
        std::future::ready(remote)
    })
    .await;
    until_quiet(&mut seen, 1).await;

    let started = Instant::now();
    for _ in 0..1_000 {
        wake::notify();
        tokio::task::yield_now().await;
    }
    let woken = async { while relay.woken().await != Wake::Remote {} };
    tokio::time::timeout(SOON, woken)
        .await
        .expect("the relay is woken");
    let elapsed = started.elapsed();
    let hints = until_quiet(&mut seen, 2).await;
    let most = 2 * (elapsed.as_millis() / hints::INTERVAL.as_millis() + 2);
    assert!(
        hints <= usize::try_from(most).unwrap(),
        "{hints} hints, not {most}"
    );

    stop.cancel();
    for task in tasks {
        tokio::time::timeout(SOON, task).await.unwrap().unwrap();
    }
}
