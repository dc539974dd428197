//! Rules for facts about the stream.

use super::*;

/// Facts describe the stream; acknowledgements do not change them.
pub async fn facts_describe_the_stream<F: SubscriberFixture>(fixture: &F) {
    let facts = async || answered(async || fixture.subscriber().facts().await).await;
    let empty = facts().await;
    assert_eq!((empty.messages, empty.first_stream_sequence), (0, None));
    assert_eq!(empty.last_stream_sequence, 0);
    // Retention policies other than `Limits` delete unread messages.
    assert_eq!(empty.policy, StreamPolicy::Limits);
    assert!(
        empty.retention.is_none_or(|age| !age.is_zero()),
        "never is `None`, not zero"
    );
    publish(fixture, NOTED, "a", 3).await;
    let mut subscription = subscribe(fixture, &consumer("c", &[NOTED], NEVER)).await;
    let mut stream_sequences = Vec::new();
    for _ in 0..3 {
        let delivery = next(&mut subscription).await;
        stream_sequences.push(delivery.incoming().stream_sequence);
        ack(delivery).await;
    }
    let full = facts().await;
    assert_eq!(full.messages, 3);
    assert_eq!(full.first_stream_sequence, Some(stream_sequences[0]));
    assert_eq!(full.last_stream_sequence, stream_sequences[2]);
}
