//! The values of the overview as server-sent events.
//!
//! Invariant: a stream of events reads nothing by itself; it passes on what the sampler has.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive};
use axum::response::{IntoResponse, Response, Sse};
use futures_util::stream;
use tokio::time::Instant;

use super::overview::Values;
use crate::web::App;
use crate::web::sampler::{SAMPLE_EVERY, latest};
use crate::web::visit::Visit;

/// After this time the browser connects again, and whoever has lost their access by then is refused.
const STREAM_MAX: Duration = Duration::from_secs(600);

/// What a stream of events has sent.
struct Sent {
    app: Arc<App>,
    number: u64,
    until: Instant,
}

pub(in crate::web) async fn get(visit: Visit) -> Response {
    let sent = Sent {
        app: visit.app,
        number: 0,
        until: Instant::now() + STREAM_MAX,
    };
    let events = stream::unfold(sent, async |sent| next(sent).await);
    Sse::new(Box::pin(events))
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// The next sample that was not sent yet. A database that does not answer sends nothing; the page says how old its values are.
async fn next(mut sent: Sent) -> Option<(Result<Event, Infallible>, Sent)> {
    while Instant::now() < sent.until {
        if let Ok(sample) = latest(&sent.app).await
            && sample.number != sent.number
        {
            sent.number = sample.number;
            // Serialising texts into memory does not fail.
            let event = Event::default().event("sample").json_data(Values::new(&sample));
            return Some((Ok(event.unwrap_or_default()), sent));
        }
        tokio::time::sleep(SAMPLE_EVERY / 2).await;
    }
    None
}
