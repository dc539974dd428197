//! The backlog of a durable consumer, for operators.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::context::ConsumerInfoErrorKind;
use async_nats::jetstream::stream::{RawMessageErrorKind, Stream};
use futures_util::future::try_join_all;
use outbox_core::{ConsumerStanding, SubscriberError};
use tokio::time::{Instant, timeout};

use crate::publish::outcome::is_temporary;
use crate::subscribe::failure::{configuration, interrupted};
use crate::subscribe::filters::filters_of;

const OLDEST_MAX: Duration = Duration::from_secs(1);

const NOT_ASKED: Duration = Duration::from_secs(60);

/// Whether the user may read single messages. Without this permission, each read takes a second and
/// adds a line to the server's log.
#[derive(Debug, Default)]
pub(crate) struct MayRead {
    unanswered_at: Mutex<Option<Instant>>,
}

impl MayRead {
    fn is_likely(&self) -> bool {
        let unanswered_at = *self.unanswered_at.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered_at.is_none_or(|at| at.elapsed() >= NOT_ASKED)
    }

    fn was_not_answered(&self) -> bool {
        let mut unanswered_at = self.unanswered_at.lock().unwrap_or_else(PoisonError::into_inner);
        unanswered_at.replace(Instant::now()).is_none()
    }
}

pub(crate) async fn standing(
    stream: &Stream,
    name: &str,
    says_oldest: bool,
    may_read: &MayRead,
) -> Result<Option<ConsumerStanding>, SubscriberError> {
    let Some(info) = info(stream, name).await? else {
        return Ok(None);
    };
    let unacknowledged = u64::try_from(info.num_ack_pending).unwrap_or(u64::MAX);
    let floor = info.ack_floor.stream_sequence;
    let waits = info.num_pending > 0 || unacknowledged > 0;
    let oldest_age = if waits && says_oldest && may_read.is_likely() {
        oldest_age(stream, &info, floor + 1, may_read).await?
    } else {
        None
    };
    Ok(Some(ConsumerStanding {
        undelivered: info.num_pending,
        unacknowledged,
        max_unacknowledged: max_unacknowledged(&info),
        oldest_age,
        floor,
        is_receiving: info.num_waiting > 0,
    }))
}

pub(crate) fn max_unacknowledged(info: &Info) -> Option<u64> {
    let max = u64::try_from(info.config.max_ack_pending).ok();
    max.filter(|max| *max > 0)
}

async fn oldest_age(
    stream: &Stream,
    info: &Info,
    from: u64,
    may_read: &MayRead,
) -> Result<Option<Duration>, SubscriberError> {
    let filters = filters_of(&info.config.filter_subject, &info.config.filter_subjects);
    let first = |filter: String| async move {
        match stream.get_first_raw_message_by_subject(filter, from).await {
            Ok(message) => Ok(Some(SystemTime::from(message.time))),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(interrupted("the oldest message cannot be read", error)),
        }
    };
    let Ok(times) = timeout(OLDEST_MAX, try_join_all(filters.into_iter().map(first))).await else {
        if may_read.was_not_answered() {
            tracing::warn!(
                consumer = info.name,
                "no answer about the age of the oldest message; next request in a minute; if this repeats, grant this user the permission to publish on `$JS.API.STREAM.MSG.GET.{}`",
                info.stream_name
            );
        }
        return Ok(None);
    };
    let oldest = times?.into_iter().flatten().min();
    Ok(oldest.map(|time| SystemTime::now().duration_since(time).unwrap_or_default()))
}

pub(crate) async fn info(stream: &Stream, name: &str) -> Result<Option<Info>, SubscriberError> {
    let error = match stream.consumer_info(name).await {
        Ok(info) => return Ok(Some(info)),
        Err(error) => error,
    };
    Err(match error.kind() {
        ConsumerInfoErrorKind::NotFound => return Ok(None),
        ConsumerInfoErrorKind::JetStream(refused) if !is_temporary(&refused) => {
            configuration(format!("consumer `{name}` cannot be read"), error)
        }
        ConsumerInfoErrorKind::StreamNotFound => {
            configuration(format!("consumer `{name}` cannot be read"), error)
        }
        _ => interrupted(format!("no answer about consumer `{name}`"), error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_server_gets_the_next_request_after_a_minute() {
        let may_read = MayRead::default();
        assert!(may_read.is_likely());
        assert!(may_read.was_not_answered());
        tokio::time::advance(NOT_ASKED / 2).await;
        assert!(!may_read.is_likely());
        tokio::time::advance(NOT_ASKED / 2).await;
        assert!(may_read.is_likely());
        assert!(!may_read.was_not_answered(), "the warning was logged before");
        assert!(!may_read.is_likely());
    }
}
