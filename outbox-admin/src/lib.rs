//! What operators ask of an outbox: how it stands, what it holds, why something does not arrive, and what a change would do.
//!
//! The answers are values: the program `outbox` prints them, and other programs can serve them as JSON. Their fields are the keys of that JSON, which do
//! not change without a word in the changelog.
//!
//! | question | see |
//! |---|---|
//! | is it well? | [`status`](fn@status) |
//! | what fails to be published, again and again? | [`failing`](fn@failing), which [`status`](fn@status) asks, too |
//! | which messages are there, and what is in one? | [`list`], [`show`] |
//! | who publishes? | [`relays`](fn@relays) |
//! | why does this not arrive? | [`Question`] |
//! | what became of the events of an aggregate? | [`Timeline`], [`effects`] |
//! | was anything lost, made up, put out of order, or left without effect? | [`prove`](fn@prove) |
//! | can it wait until morning? | [`forecast`](fn@forecast) |
//! | what is paused, and what would pausing do? | [`pauses`], [`preview_pause`], [`preview_unpause`], [`apply_pause`], [`apply_unpause`] |
//! | what would retry, skip, replay or resume do? | [`preview`], [`preview_resume`] |
//! | does the cause of a failure still hold? | [`causes`](fn@causes), [`causes_of_aggregate`], [`letter_causes`] |
//! | who has changed what, why, and what became of it? | [`list_operations`], [`show_operation`], [`carry_out`] |
//! | what would forgetting aggregates delete, and what would it cost? | [`preview_forget`] |
//! | how far is a consumer behind? | [`consumer`], [`consumers`](fn@consumers) |
//! | do database, stream, consumers and settings fit together? | [`doctor`] |
//! | which rights does each part need? | [`rights`] |
//! | what could consumers not handle? | [`group_letters`], [`read_letters`], [`show_letter`], [`LetterPreview`], [`carry_out_letters`] |
//!
//! **Promised**: nothing changes an outbox, an inbox or a stream but [`carry_out`], [`apply_resume`], [`apply_forget`], [`apply_pause`], [`apply_unpause`],
//! [`carry_out_letters`] and [`carry_out_by_key`].
//! No value holds a payload that is not masked, nor the address of a server.
//!
//! **Not promised**: one moment. An answer is made of several reads, while relays go on.
//!
//! It works over each store and each broker that has the seams of `outbox-core`, [`OutboxReader`](outbox_core::OutboxReader) above all, and over the tables of
//! `outbox-inbox`. Feature `web`: the same as a dashboard, see `web`. Not here: text for terminals and the command line, see `outbox-cli`.

#![warn(unreachable_pub, clippy::print_stdout, clippy::print_stderr)]

mod apply;
mod audit;
mod change;
mod consumers;
pub mod doctor;
mod failing;
mod forecast;
mod forget;
mod holes;
pub mod input;
mod letters;
mod messages;
mod next;
mod of_aggregate;
mod pause;
pub mod prove;
mod recheck;
mod relay_causes;
mod relays;
mod resume;
pub mod rights;
mod serial;
mod status;
mod stream_full;
mod stream_view;
mod table;
mod timeline;
mod verdict;
#[cfg(feature = "web")]
pub mod web;
mod why;
pub mod words;

pub use apply::{Applied, apply_forget, apply_resume, carry_out};
pub use audit::{
    OperationDetail, OperationRow, list_inbox_operations, list_operations, show_inbox_operation,
    show_operation,
};
pub use change::{Change, ErrorCount, PREVIEW_MAX, Preview, preview, preview_rest};
pub use consumers::{
    CONSUMER_BEHIND_AFTER, ConsumerRow, ConsumerTrouble, consumer, consumers, consumers_on_stream,
};
pub use failing::{Failing, failing};
pub use forecast::{
    ConsumerSeen, Forecast, ListedConsumer, Outlook, Prospect, Seen, StreamUse, Subject, doubled, forecast,
};
pub use forget::{ForgetPreview, ForgetRow, preview_forget};
pub use holes::Hole;
pub use letters::{
    GroupFingerprint, GroupFingerprintError, LetterCause, LetterChange, LetterDetail, LetterGroup,
    LetterPreview, LetterRow, LettersChanged, carry_out_by_key, carry_out_letters, group_letters,
    letter_causes, read_letters, show_letter,
};
pub use messages::{MessageDetail, MessageRow, PayloadView, list, page, show};
pub use next::{Command, Next};
pub use pause::{
    PauseChanged, PausePreview, PauseRow, apply_pause, apply_unpause, pause_operation, pause_scope, pauses,
    preview_pause, preview_unpause, unpause_operation,
};
pub use prove::{
    ConsumerBooks, ConsumerFloor, FACTS_MAX, Findings, Found, HoleOf, Holes, OutboxBooks, Proof, ProofError,
    ProofRequest, RowsKept, StreamBooks, Verdict, prove,
};
pub use recheck::{CauseNow, Holds, Obstacle, RECHECKED_MAX, Refused, causes, causes_of_aggregate};
pub use relays::{RelayRow, relays};
pub use resume::{ResumePreview, preview_resume};
pub use status::{BacklogCounts, BrokerCheck, ConsumerCounts, PartitionCounts, RelayCounts, Status, status};
pub use stream_view::{InboxView, NoStream, Refuses, StreamView, look_ahead};
pub use table::{Column, Columns};
pub use timeline::{Effect, EffectOutcome, EffectRow, Timeline, TimelineEvent, effects};
pub use verdict::{Reason, State};
pub use why::{
    Cause, Explanation, Finding, MessageOrAggregate, Numbers, Question, Reader, Readers, earlier_events,
};
pub use words::quoted;
