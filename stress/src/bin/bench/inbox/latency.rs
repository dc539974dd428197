//! The time from publishing a message to its effect, and the cost of an idle inbox.
//!
//! The time runs from the hand-over to the client to the receipt of the acknowledgement, so the
//! figure is slightly too high.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::Subscriber;
use futures_util::StreamExt as _;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::World;
use crate::figure::{Figure, Series};
use crate::latency::{Latency, PATIENCE, SETTLING, watch_rest};
use crate::raw::{Messages, WINDOW, context};
use crate::servers::Servers;
use crate::{Options, Result, check};

const PACE: u64 = 500;

pub(super) async fn figures(servers: &Servers, options: &Options) -> Result<Vec<Figure>> {
    let seconds = options.size(20, 5);
    let mut series = Series::default();
    for _ in options.runs("latency") {
        let latency = measure(servers, seconds).await?;
        series.add("publish_to_effect_p50", latency.p50);
        series.add("publish_to_effect_p99", latency.p99);
        let (queries, cpu) = rest(servers, seconds).await?;
        series.add("inbox_idle_queries_per_s", queries);
        series.add("inbox_idle_cpu_percent", cpu);
    }
    Ok(vec![
        series.alone("publish_to_effect_p50", "ms"),
        series.alone("publish_to_effect_p99", "ms"),
        series.alone("inbox_idle_queries_per_s", "1/s"),
        series.alone("inbox_idle_cpu_percent", "% of a core"),
    ])
}

async fn measure(servers: &Servers, seconds: u64) -> Result<Latency> {
    let mut world = World::make(servers, 0).await?;
    let inbox = world.start()?;
    sleep(SETTLING).await;
    let client = async_nats::connect(world.stream.nats_url.as_str()).await?;
    // Acknowledgements are ordinary NATS messages.
    let answers = client
        .subscribe(format!("$JS.ACK.{}.one.>", world.stream.name))
        .await?;
    client.flush().await?;
    world.messages = PACE * seconds;
    let answered = tokio::spawn(answered(answers, world.messages));
    let published = publish(&world, &client).await?;
    let answered = answered.await??;
    check("messages handled", inbox.stop().await?.messages, world.messages)?;
    let millis = published
        .iter()
        .zip(&answered)
        .map(|(published, answered)| {
            let answered = answered.ok_or("a message was not acknowledged")?;
            Ok(answered.saturating_duration_since(*published).as_secs_f64() * 1000.0)
        })
        .collect::<Result<Vec<f64>>>()?;
    let effects = world.messages;
    world.remove(effects).await?;
    Ok(Latency::of(millis))
}

/// Returns the hand-over times by stream sequence.
async fn publish(world: &World, client: &async_nats::Client) -> Result<Vec<Instant>> {
    let messages = Messages::new(&world.stream)?;
    let context = context(client.clone());
    let mut ticks = interval(Duration::from_secs(1) / u32::try_from(PACE)?);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (mut published, mut acks) = (Vec::new(), VecDeque::new());
    for n in 0..world.messages {
        ticks.tick().await;
        let (subject, message) = messages.event(n)?;
        published.push(Instant::now());
        acks.push_back(context.send_publish(subject, message).await?);
        // The oldest acknowledgement arrived long ago.
        if acks.len() == WINDOW {
            acks.pop_front().ok_or("no acknowledgement")?.await?;
        }
    }
    let mut last = 0;
    for ack in acks {
        last = ack.await?.sequence;
    }
    check("stream sequence of the last message", last, world.messages)?;
    Ok(published)
}

async fn answered(mut answers: Subscriber, messages: u64) -> Result<Vec<Option<Instant>>> {
    let mut answered = vec![None; usize::try_from(messages)?];
    let mut left = messages;
    while left > 0 {
        let answer = timeout(PATIENCE, answers.next())
            .await
            .map_err(|_| "messages were not acknowledged in time")?
            .ok_or("the observer's subscription ended")?;
        let at = Instant::now();
        // Skips progress reports and negative acknowledgements.
        if !answer.payload.is_empty() && !answer.payload.starts_with(b"+ACK") {
            continue;
        }
        let stream_sequence =
            stream_sequence(&answer.subject).ok_or("an acknowledgement has an unknown form")?;
        let first = answered
            .get_mut(stream_sequence - 1)
            .ok_or("an acknowledgement is of no message of ours")?;
        if first.replace(at).is_none() {
            left -= 1;
        }
    }
    Ok(answered)
}

/// Parses `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<number>.<time>.<pending>`.
/// Newer servers add two tokens in front and one at the end.
fn stream_sequence(subject: &str) -> Option<usize> {
    let tokens: Vec<&str> = subject.split('.').collect();
    let token = if tokens.len() == 9 { 5 } else { 7 };
    tokens
        .get(token)?
        .parse()
        .ok()
        .filter(|stream_sequence| *stream_sequence > 0)
}

/// Transactions per second, and percent of a core.
async fn rest(servers: &Servers, seconds: u64) -> Result<(f64, f64)> {
    let world = World::make(servers, 0).await?;
    let inbox = world.start()?;
    let rest = watch_rest(servers, &inbox, seconds).await?;
    check("messages handled at rest", inbox.stop().await?.messages, 0)?;
    world.remove(0).await?;
    Ok(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_acknowledgements_tell_the_stream_sequence() {
        assert_eq!(
            stream_sequence("$JS.ACK.EVENTS.one.1.42.7.1700000000000000000.0"),
            Some(42)
        );
        assert_eq!(
            stream_sequence("$JS.ACK._.hash.EVENTS.one.1.42.7.1700000000000000000.0.x"),
            Some(42)
        );
        assert_eq!(stream_sequence("$JS.ACK.EVENTS.one"), None);
    }
}
