//! Messages that async-nats cannot parse. Any user with publish permission can send them.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use futures_util::FutureExt as _;
use outbox_core::{
    ConsumerSpec, Delivery as _, StreamLog as _, StreamReader as _, Subscriber as _, SubscriberError,
    Subscription as _,
};
use outbox_nats::JetStreamSubscription;
use time::OffsetDateTime;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::environment::{LONG, Nats, PLACED, answered, consumer, message, on_both_servers};

on_both_servers! {
    unparsable_messages_do_not_block_other_messages,
    dropped_calls_find_unparsable_messages,
    unparsable_messages_do_not_end_the_reading_of_a_stream,
    header_that_ends_the_client_keeps_the_consumer,
}

/// Header blocks at which async-nats closes its connection, or which it takes for a server status.
const BLOCKS: &[&[u8]] = &[
    b"NATS/1.0\r\nX-Bad: \xff\xfe\r\n\r\n",
    b"NATS/1.0\r\nno colon\r\n\r\n",
    b"NATS/1.0\r\nb d: x\r\n\r\n",
    b"NATS/1.0 503\r\n\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
];

async fn publish_raw(nats: &Nats, blocks: impl Iterator<Item = &[u8]>) {
    let address = nats.url().trim_start_matches("nats://");
    let mut connection = TcpStream::connect(address).await.unwrap();
    let mut sent = b"CONNECT {\"verbose\":false,\"headers\":true}\r\n".to_vec();
    for block in blocks {
        let subject = format!("{}.order.7.placed", nats.prefix);
        sent.extend(format!("HPUB {subject} {} {}\r\n", block.len(), block.len() + 3).bytes());
        sent.extend(block);
        sent.extend(b"raw\r\n");
    }
    sent.extend(b"PING\r\n");
    connection.write_all(&sent).await.unwrap();
    let (mut answer, mut buffer) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(b"PONG\r\n") {
        let read = connection.read(&mut buffer).await.unwrap();
        assert_ne!(read, 0, "{}", answer.escape_ascii());
        answer.extend(&buffer[..read]);
    }
}

/// Acknowledges messages until `count` different messages were received. Returns their stream
/// sequences and whether the messages have a type. With `drops`, each call of `next` is polled
/// once, except after a failure.
async fn take(subscription: &mut JetStreamSubscription, count: usize, drops: bool) -> BTreeSet<(u64, bool)> {
    let (mut taken, mut had_trouble) = (BTreeSet::new(), false);
    let taking = async {
        while taken.len() < count {
            let next = match drops && !had_trouble {
                true => subscription.next().now_or_never(),
                false => Some(subscription.next().await),
            };
            had_trouble = matches!(next, Some(Err(_)));
            let Some(Ok(delivery)) = next else {
                sleep(Duration::from_millis(1)).await;
                continue;
            };
            delivery.ack().await.unwrap();
            let incoming = delivery.incoming();
            let has_type = incoming.headers.iter().any(|(name, _)| name == "ce-type");
            taken.insert((incoming.stream_sequence, has_type));
        }
    };
    let in_time = timeout(2 * LONG, taking).await.is_ok();
    assert!(in_time, "{} of {count}: {taken:?}", taken.len());
    taken
}

async fn unparsable_messages_do_not_block_other_messages(nats: &Nats) {
    nats.provision().await;
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(2),
        in_flight_max: 64,
        prefetch: 64,
        ..consumer(&[&PLACED])
    };
    let mut subscription = nats.subscribe(&spec).await;
    publish_raw(nats, BLOCKS.iter().copied().cycle().take(100)).await;
    for n in 1..=5 {
        nats.publish(&message(&PLACED, "9", n)).await;
    }
    let taken = take(&mut subscription, 105, false).await;
    let expected: BTreeSet<_> = (1..=105).map(|sequence| (sequence, sequence > 100)).collect();
    assert_eq!(taken, expected);
    let settled = async || {
        let info = nats.consumer_info(&spec).await;
        (info.num_pending, info.num_ack_pending) == (0, 0)
    };
    outbox_testing::eventually("all is acknowledged", settled).await;
}

async fn dropped_calls_find_unparsable_messages(nats: &Nats) {
    nats.provision().await;
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(2),
        ..consumer(&[&PLACED])
    };
    let mut subscription = nats.subscribe(&spec).await;
    nats.publish(&message(&PLACED, "9", 1)).await;
    take(&mut subscription, 1, false).await;
    publish_raw(nats, BLOCKS.iter().copied()).await;
    let taken = take(&mut subscription, BLOCKS.len(), true).await;
    let expected: BTreeSet<_> = (2..)
        .take(BLOCKS.len())
        .map(|sequence| (sequence, false))
        .collect();
    assert_eq!(taken, expected);
}

async fn header_that_ends_the_client_keeps_the_consumer(nats: &Nats) {
    nats.provision().await;
    let spec = ConsumerSpec {
        ack_wait: Duration::from_secs(2),
        ..consumer(&[&PLACED])
    };
    nats.subscribe(&spec).await;
    publish_raw(nats, std::iter::once(&b"NATS/1.0\r\nX-Bad: a\rb\r\n\r\n"[..])).await;
    let mut ended = 0;
    let taken = timeout(2 * LONG, async {
        loop {
            let client = outbox_nats::connect(nats.url(), outbox_nats::connect_options())
                .await
                .unwrap();
            let subscriber = nats.stream().subscriber(client);
            let mut subscription = subscriber.subscribe(&spec).await.unwrap();
            loop {
                match subscription.next().await {
                    Ok(delivery) => return delivery,
                    Err(SubscriberError::Gone { .. }) => break,
                    Err(_) => {}
                }
            }
            let again = subscriber.subscribe(&spec).await;
            assert!(
                matches!(again, Err(SubscriberError::Configuration { .. })),
                "{:?}",
                again.err()
            );
            ended += 1;
        }
    });
    let delivery = taken.await.expect("the message is delivered raw");
    assert!(ended > 0, "the header no longer ends the client");
    assert_eq!(delivery.incoming().payload.as_ref(), b"raw");
    delivery.ack().await.unwrap();
}

async fn unparsable_messages_do_not_end_the_reading_of_a_stream(nats: &Nats) {
    nats.provision().await;
    let mut good = HashSet::new();
    for (n, block) in (1..).zip(BLOCKS) {
        let message = message(&PLACED, "9", n);
        nats.publish(&message).await;
        good.insert(message.id);
        publish_raw(nats, std::iter::repeat_n(*block, 20)).await;
    }
    let publisher = nats.publisher();
    let listed = answered(async || publisher.message_ids(OffsetDateTime::UNIX_EPOCH).await).await;
    assert_eq!(listed, good);
    let mut read = HashSet::new();
    let extent = answered(async || {
        let see = |message: outbox_core::StreamedMessage| {
            read.insert(message.id);
            true
        };
        publisher.read(OffsetDateTime::UNIX_EPOCH, see).await
    })
    .await;
    assert_eq!((read, extent.foreign), (good, 100));
}
