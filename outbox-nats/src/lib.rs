//! NATS JetStream for the transactional outbox: publishes messages to a stream and receives them
//! for consumers.
//!
//! [`EventStream`] describes the stream once. It creates or checks the stream, and creates the
//! [`JetStreamPublisher`] of a relay and the [`JetStreamSubscriber`] of an inbox. The crate works
//! with nats-server 2.9 and newer.
//!
//! **Guarantees**
//!
//! - A publish is `Ok` only if the message is on the stream.
//! - Publishing a message again within the stream's duplicate window stores no copy.
//! - Every failure states whether the message may be stored, can never be stored, or should be sent
//!   again.
//! - No aggregate id maps to a default subject of another aggregate or to a subject of the server.
//! - A consumer receives every message of its events at least once, across restarts.
//!
//! **Not guaranteed**: exactly one copy on the stream. The server forgets message ids after the
//! duplicate window. A message in flight when the connection broke may be stored although its
//! failure was reported. The inbox drops such copies.
//!
//! ```no_run
//! use outbox_core::{OutboxStore, Relay, shutdown};
//! use outbox_nats::{EventStream, connect, connect_options};
//!
//! async fn relay(store: impl OutboxStore) -> Result<(), Box<dyn std::error::Error>> {
//!     let client = connect("nats://127.0.0.1:4222", connect_options()).await?;
//!     // Creates the stream `EVENTS` with `events.>`, or checks it.
//!     let stream = EventStream::default();
//!     stream.provision(&client).await?;
//!     Relay::new(store, stream.publisher(client)).run(shutdown::on_signals()).await?;
//!     Ok(())
//! }
//! ```
//!
//! | to | see |
//! |---|---|
//! | connect with an address alone | [`EventStream::connect`] |
//! | connect with credentials or TLS | [`connect`](fn@connect), [`connect_options`] |
//! | create or check the stream | [`EventStream::provision`], [`Provisioning`] |
//! | publish | [`EventStream::publisher`], [`PublisherConfig`] |
//! | have the server reject late and reordered messages | [`EventStream::with_strong_mode`] |
//! | check the stream at start | [`preflight`](outbox_core::Publisher::preflight) |
//! | list the messages on the stream | [`StreamLog`](outbox_core::StreamLog) |
//! | receive | [`EventStream::subscriber`] |
//! | read a consumer's position | [`Subscriber::standing`](outbox_core::Subscriber::standing) |
//! | wake relays in other processes | [`hints`] |
//! | filter by event type or aggregate | [`SubjectPrefix`] |
//! | read an aggregate id from a subject | [`decode_token`] |
//!
//! The crate re-exports async-nats, so that options and clients have the same version.

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

mod connect;
mod publish;
mod stream;
mod subscribe;

pub mod hints;

pub use async_nats;
pub use connect::address::servers;
pub use connect::credentials::connect_options_with_credentials;
pub use connect::denials::Denial;
pub use connect::{
    ConnectError, connect, connect_options, connect_with_events, inbox_prefix, inbox_prefix_of,
};
pub use publish::{JetStreamPublisher, PublisherConfig};
pub use stream::admission::{Limit, Refusal, Room, StreamOutlook};
pub use stream::consumers::StreamReading;
pub use stream::provision::{ProvisionError, StreamReport};
pub use stream::subject::{
    PREFIX_BYTES_MAX, SubjectError, SubjectPrefix, covers, decode_token, encode_token, overlap,
};
pub use stream::{EventStream, Provisioning};
pub use subscribe::JetStreamSubscriber;
pub use subscribe::subscription::{JetStreamDelivery, JetStreamSubscription};
