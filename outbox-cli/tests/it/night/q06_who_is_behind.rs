//! Who is behind, and will it catch up? A consumer without a process, and a slow consumer.

use std::time::Duration;

use futures_util::StreamExt as _;
use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream;
use outbox::nats::async_nats::jetstream::consumer::{Consumer, pull};

use super::page::check;
use crate::operate::answer::ask;
use crate::operate::plant::{OrderPlaced, Planted};
use crate::place::Kind;

/// The first run creates the consumer.
async fn with_a_consumer() -> Option<Planted> {
    let planted = Planted::open(Kind::Postgres).await?;
    planted.publish().await;
    planted.handle().await;
    Some(planted)
}

#[tokio::test]
async fn lag_says_that_nobody_receives_and_a_forecast_that_it_handles_none() {
    let Some(planted) = with_a_consumer().await else {
        return;
    };
    planted.placed("4711").await;
    planted.placed("4712").await;
    planted.publish().await;
    check(&planted, "consumers list", 0);
    let answer = check(&planted, "consumers lag billing", 3);
    assert!(answer.out.contains("no process was seen asking"), "{answer:?}");
    assert!(
        answer.out.contains("next: outbox consumers list --forecast"),
        "{answer:?}"
    );
    let answer = check(&planted, "consumers list --forecast=2s", 0);
    assert!(
        answer.out.contains("2 messages are left, and it handles none"),
        "{answer:?}"
    );
    planted.close().await;
}

async fn read_slowly(consumer: Consumer<pull::Config>) {
    loop {
        let mut batch = consumer.fetch().max_messages(1).messages().await.unwrap();
        while let Some(message) = batch.next().await {
            message.unwrap().ack().await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The work takes over a minute and the forecast two seconds, so some work is left even on a
/// slow machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forecast_says_when_a_slow_consumer_has_caught_up() {
    let Some(planted) = with_a_consumer().await else {
        return;
    };
    let place = &planted.place;
    let order = |number: u32| OrderPlaced {
        order_id: number.to_string(),
        email: String::new(),
    };
    planted.record((0..2_000).map(order).collect::<Vec<_>>()).await;
    planted.publish().await;
    let client = EventStream::new(&place.name).connect(&place.nats).await.unwrap();
    let stream = jetstream::new(client).get_stream(&place.name).await.unwrap();
    let reader = tokio::spawn(read_slowly(stream.get_consumer("billing").await.unwrap()));
    let words = ["consumers", "list", "--forecast=2s", "-o", "json"];
    let listed = ask(place, &words).expect(0).json();
    reader.abort();
    assert!(reader.await.unwrap_err().is_cancelled(), "the reader has failed");
    let mut prospects = listed[0]["forecast"].as_array().unwrap().iter();
    let prospect = prospects
        .find(|prospect| prospect["subject"] == "consumer")
        .unwrap();
    assert_eq!(prospect["outlook"], "ends", "{listed}");
    assert!(prospect["per_second"].as_f64().unwrap() < 0.0, "{listed}");
    assert!(prospect["within_seconds"].as_f64().unwrap() > 0.0, "{listed}");
    let what = prospect["what"].as_str().unwrap();
    assert!(what.contains(" fewer each second; it catches up in "), "{listed}");
    planted.close().await;
}
