//! Operator queries and changes for an outbox, its consumers and its stream.
//!
//! All results are values: `outbox` prints them and other programs can serve them as JSON. Field
//! names are the JSON keys; changes of keys are listed in the changelog.
//!
//! | question | see |
//! |---|---|
//! | Is the outbox healthy? | [`status`](fn@status) |
//! | Which messages keep failing? | [`failing`](fn@failing), included in [`status`](fn@status) |
//! | Which messages exist, and what do they contain? | [`list`], [`show`] |
//! | Which relays publish? | [`relays`](fn@relays) |
//! | Why is a message not delivered? | [`Question`] |
//! | What happened to the events of an aggregate? | [`Timeline`], [`effects`] |
//! | Are events lost, invented, out of order or without effect? | [`prove`](fn@prove) |
//! | When does the backlog end? | [`forecast`](fn@forecast) |
//! | What is paused, and what would a pause do? | [`pauses`], [`preview_pause`], [`preview_unpause`], [`apply_pause`], [`apply_unpause`] |
//! | What would retry, skip, replay or resume do? | [`preview`], [`preview_resume`] |
//! | Does the cause of a failure still hold? | [`causes`](fn@causes), [`causes_of_aggregate`], [`letter_causes`] |
//! | Who changed what, and why? | [`list_operations`], [`show_operation`], [`carry_out`] |
//! | What would forgetting aggregates delete? | [`preview_forget`] |
//! | How far behind is a consumer? | [`consumer`], [`consumers`](fn@consumers) |
//! | Do database, stream, consumers and settings fit together? | [`doctor`] |
//! | Which rights does each component need? | [`rights`] |
//! | Which messages did consumers fail to handle? | [`group_letters`], [`read_letters`], [`show_letter`], [`LetterPreview`], [`carry_out_letters`] |
//!
//! Invariant: only [`carry_out`], [`apply_resume`], [`apply_forget`], [`apply_pause`],
//! [`apply_unpause`], [`carry_out_letters`] and [`carry_out_by_key`] change an outbox, an inbox
//! or a stream. No value contains an unmasked payload or a server address.
//!
//! Results are not snapshots: several reads make up one result while relays continue to work.
//!
//! The crate works with every store that implements [`OutboxReader`](outbox_core::OutboxReader)
//! and with the tables of `outbox-inbox`. Feature `web` adds a dashboard. The command line is in
//! `outbox-cli`.

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
