//! The server stores what a relay publishes, and its acknowledgements are lost on the way back: nothing is lost or stands on the stream twice, and nothing
//! overtakes a message that is not confirmed. The relay sends messages again under the same ids. In strong mode a newer server refuses them then, and the
//! relay finds them on the stream; an old one acknowledges them again.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::testing::{MemoryStore, backend_url};
use outbox_core::retry::Backoff;
use outbox_core::{DomainEvent, EventDescriptor, MessageId, Relay, RelayConfig};
use outbox_nats::async_nats::jetstream::{self, stream::Stream};
use outbox_nats::{EventStream, PublisherConfig, connect, connect_options};
use tokio_util::sync::CancellationToken;

use crate::lossy::Lossy;

const LAMPS: u64 = 10;
const LEVELS: u64 = 3;
const SOON: Duration = Duration::from_secs(30);
/// A message is sent this often, before acknowledgements pass.
const SENT: usize = 3;

#[derive(DomainEvent, serde::Serialize)]
#[domain_event(aggregate = "lamp", name = "dimmed")]
struct Dimmed {
    #[domain_event(aggregate_id)]
    lamp: u64,
    level: u64,
}

/// The numbers of each aggregate's messages, in the order of the stream.
pub(crate) async fn on_stream(stream: &Stream) -> BTreeMap<String, Vec<String>> {
    let mut numbers = BTreeMap::<_, Vec<_>>::new();
    for at in 1..=stream.get_info().await.unwrap().state.last_sequence {
        let message = stream.get_raw_message(at).await.unwrap();
        let sequence = message.headers.get("ce-sequence").unwrap().to_string();
        let aggregate = message.headers.get("ce-subject").unwrap().to_string();
        numbers.entry(aggregate).or_default().push(sequence);
    }
    numbers
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, wait)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen"));
}

/// Goal: a publish that was stored and not confirmed costs time only. Method: a proxy loses the acknowledgements until a message was sent several times, or
/// `for_ever`.
async fn lost_acknowledgements_cost_time_only(variable: &'static str, strong: bool, for_ever: bool) {
    let Some(url) = backend_url(variable) else {
        return;
    };
    let name = format!("lost-{}", MessageId::fresh());
    let mut stream = EventStream::new(&name).with_prefix(&name).unwrap();
    if strong {
        stream = stream.with_strong_mode();
    }
    let client = connect(url.as_str(), connect_options()).await.unwrap();
    let dimmed: [&'static EventDescriptor; 1] = [&Dimmed::DESCRIPTORS[0]];
    stream.provision_for(&client, dimmed).await.unwrap();
    let stored = jetstream::new(client.clone()).get_stream(&name).await.unwrap();

    let server = url.rsplit(['/', '@']).next().unwrap().to_owned();
    let proxy = Lossy::in_front_of(server).await;
    let behind = connect(proxy.url(), connect_options().ignore_discovered_servers())
        .await
        .unwrap();
    let config = PublisherConfig::default().ack_timeout(Duration::from_millis(200));
    let backoff = Backoff {
        min: Duration::from_millis(10),
        max: Duration::from_millis(50),
    };
    let store = MemoryStore::new();
    for level in 1..=LEVELS {
        let dimmed: Vec<_> = (0..LAMPS).map(|lamp| Dimmed { lamp, level }).collect();
        store.record(dimmed).unwrap();
    }
    proxy.lose_of_publishes(true);
    let relay = Relay::new(store.clone(), stream.publisher(behind).with_config(config))
        .with_config(RelayConfig::default().backoff(backoff));
    let shutdown = CancellationToken::new();
    let scenario = async {
        if !for_ever {
            until("sending again", || {
                let published = proxy.published();
                published.len() as u64 >= LAMPS && published.values().any(|times| *times >= SENT)
            })
            .await;
            let published = proxy.published();
            assert_eq!(published.len() as u64, LAMPS, "something overtook: {published:?}");
            proxy.lose_of_publishes(false);
        }
        tokio::time::timeout(SOON, store.until_drained()).await.unwrap();
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);

    let report = report.unwrap();
    let all = LAMPS * LEVELS;
    assert_eq!((report.published, report.dead_letters), (all, 0), "{report:?}");
    let lost = if for_ever { all } else { LAMPS };
    assert!(report.duplicates >= lost, "{report:?}");
    assert!(
        proxy.lost() as u64 >= lost,
        "{} acknowledgements were lost",
        proxy.lost()
    );
    assert!(store.rows().iter().all(|row| row.attempts == 0));
    let expected: Vec<_> = (1..=LEVELS).map(|level| level.to_string()).collect();
    let numbers = on_stream(&stored).await;
    jetstream::new(client).delete_stream(&name).await.unwrap();
    assert_eq!(numbers.len() as u64, LAMPS);
    assert!(numbers.values().all(|order| *order == expected), "{numbers:?}");
}

#[tokio::test]
async fn publish_acknowledgements_that_are_lost_leave_no_copy() {
    lost_acknowledgements_cost_time_only("OUTBOX_TEST_NATS_URL", false, false).await;
}

#[tokio::test]
async fn publish_acknowledgements_that_are_lost_leave_no_copy_on_an_old_server() {
    lost_acknowledgements_cost_time_only("OUTBOX_TEST_NATS_OLD_URL", false, false).await;
}

#[tokio::test]
async fn publish_acknowledgements_that_are_lost_leave_no_copy_in_strong_mode_on_an_old_server() {
    lost_acknowledgements_cost_time_only("OUTBOX_TEST_NATS_OLD_URL", true, false).await;
}

#[tokio::test]
async fn publish_acknowledgements_that_are_lost_do_not_stop_a_relay_in_strong_mode() {
    lost_acknowledgements_cost_time_only("OUTBOX_TEST_NATS_URL", true, true).await;
}
