//! What the doctor finds about handlers that are linked into the program. The program `outbox` has none; one that mounts the commands may have some.
//!
//! Invariant: the filters that are wanted are computed by the inbox and the subscriber themselves, so they cannot differ from those that a service asks for.

use futures_util::TryStreamExt as _;
use outbox::core::describe;
use outbox::inbox::Router;
use outbox::nats::EventStream;
use outbox::nats::async_nats::jetstream::consumer;
use outbox::nats::async_nats::jetstream::stream::Stream;
use outbox_admin::doctor::{Diagnosis, LinkedConsumer, of_handlers};

use crate::commands::place::Place;

/// Compares the handlers of this program with the durable consumers of a stream. An error is a text for people.
pub(super) async fn findings(
    place: &Place,
    handle: &Stream,
    stream: &EventStream,
    durables: &[consumer::Info],
) -> Result<Vec<Diagnosis>, String> {
    // From which of several places a consumer reads, and so which filters it needs, only its service knows.
    if place.context.several_places {
        return Ok(Vec::new());
    }
    let router = Router::registered();
    let mut found = Vec::new();
    for name in router.consumers() {
        let handlers = linked(&router, name, stream);
        let durable = durables.iter().find(|info| info.name == name);
        // An inbox may read another stream than that of the outbox beside it: it is missed only where there is something for it.
        if durable.is_none() && !holds_any(handle, &handlers.wanted).await? {
            continue;
        }
        let asked = durable.map(|info| filters(&info.config));
        found.extend(of_handlers(&handlers, asked.as_deref()));
    }
    Ok(found)
}

/// Whether the stream holds a message that one of the filters selects.
async fn holds_any(handle: &Stream, filters: &[String]) -> Result<bool, String> {
    for filter in filters {
        let mut subjects = handle
            .info_with_subjects(filter)
            .await
            .map_err(|error| describe(&error))?;
        let first = subjects.try_next().await.map_err(|error| describe(&error))?;
        if first.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the inbox of a consumer asks for.
fn linked(router: &Router, name: &str, stream: &EventStream) -> LinkedConsumer {
    let interest = router.interest(name);
    let needed = |stream: &EventStream| {
        let events = interest.events.iter().chain(&interest.siblings).copied();
        stream.consumer_filters(events, interest.whole_aggregates)
    };
    LinkedConsumer {
        name: name.to_owned(),
        wanted: needed(stream),
        // Inboxes never narrow filters, so they outlast strong mode. So may messages.
        harmless: needed(&stream.clone().with_strong_mode()),
    }
}

/// The filters of a durable consumer; none if it asks for everything.
fn filters(config: &consumer::Config) -> Vec<String> {
    if config.filter_subjects.is_empty() && !config.filter_subject.is_empty() {
        return vec![config.filter_subject.clone()];
    }
    config.filter_subjects.clone()
}
