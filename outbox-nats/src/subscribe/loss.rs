//! Finds deliveries that async-nats could not receive.
//!
//! async-nats closes the connection at a delivery that it cannot parse, and the server redelivers
//! the message after `ack_wait`, without end. After a reconnection this module reads the
//! unacknowledged messages through the JSON API, and hands over the messages that async-nats cannot
//! receive.
//!
//! Invariants: each reconnection costs a bounded number of reads, and no message is checked twice.
//! A message that breaks the client is handed over after each reconnection until it is
//! acknowledged.
//!
//! A carriage return within a header value ends the client's task (async-nats 0.51 panics), so a
//! subscription also checks at its start if the consumer has redelivered messages.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use async_nats::jetstream::consumer::{Info, PullConsumer};
use async_nats::jetstream::{self, Context};
use tokio::time::Instant;

use crate::stream::listing::{RAW_BYTES, RAW_MESSAGES};
use crate::stream::message::{self, RawError, RawMessage};
use crate::subscribe::filters::takes;

/// Bound on one check. The next reconnection continues the check.
const CHECK_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Rescue {
    /// Number of connections at the last check; `None` before the first check.
    pub(crate) connects: Option<u64>,
    checked: u64,
    breaking: BTreeSet<u64>,
    found: VecDeque<jetstream::Message>,
}

impl Rescue {
    pub(crate) fn new(connects: u64, checks_now: bool) -> Self {
        Self {
            connects: (!checks_now).then_some(connects),
            ..Self::default()
        }
    }

    pub(crate) fn take(&mut self) -> Option<jetstream::Message> {
        self.found.pop_front()
    }

    pub(crate) async fn after_reconnection(
        mut self,
        context: Context,
        consumer: PullConsumer,
        connects: u64,
    ) -> Self {
        let checked = match consumer.get_info().await {
            Ok(info) => self.run(&context, &info).await,
            Err(_) => Ok(()),
        };
        if let Err(error) = checked {
            tracing::warn!(
                consumer = consumer.cached_info().name,
                error = outbox_core::describe(&error),
                "unacknowledged messages cannot be checked after a reconnection; grant this user the permission to publish on `$JS.API.STREAM.MSG.GET.<stream>`"
            );
        }
        self.connects = Some(connects);
        self
    }

    async fn run(&mut self, context: &Context, info: &Info) -> Result<(), RawError> {
        let (floor, delivered) = (info.ack_floor.stream_sequence, info.delivered.stream_sequence);
        self.breaking = self.breaking.split_off(&(floor + 1));
        self.found.clear();
        if info.num_ack_pending == 0 {
            return Ok(());
        }
        let until = Instant::now() + CHECK_MAX;
        let (mut messages, mut bytes) = (0, 0);
        for stream_sequence in &self.breaking {
            if bytes >= RAW_BYTES || Instant::now() >= until {
                return Ok(());
            }
            if let Some(message) = message::at(context, &info.stream_name, *stream_sequence).await? {
                bytes += message.payload.len();
                self.found.push_back(hand_over(message, context, info));
            }
        }
        self.checked = self.checked.max(floor);
        while self.checked < delivered
            && messages < RAW_MESSAGES
            && bytes < RAW_BYTES
            && Instant::now() < until
        {
            let next = message::next(context, &info.stream_name, self.checked + 1, ">").await?;
            let Some(message) = next.filter(|message| message.stream_sequence <= delivered) else {
                self.checked = delivered;
                break;
            };
            self.checked = message.stream_sequence;
            messages += 1;
            bytes += message.payload.len();
            if message.breaks_client && takes(info, &message.subject) {
                self.breaking.insert(message.stream_sequence);
                self.found.push_back(hand_over(message, context, info));
            }
        }
        Ok(())
    }
}

fn hand_over(message: RawMessage, context: &Context, info: &Info) -> jetstream::Message {
    tracing::error!(
        stream = info.stream_name,
        consumer = info.name,
        stream_sequence = message.stream_sequence,
        "the headers of a message cannot be parsed, and its delivery closes the connection; the message is handled with the headers that can be parsed"
    );
    message.into_delivery(context, &info.stream_name, &info.name)
}
