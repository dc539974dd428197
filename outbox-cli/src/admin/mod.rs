//! Operator queries and changes for an outbox, its consumers and its stream.
//!
//! Results are values: `outbox` prints them, and other programs can serve them as JSON. Field
//! names are the JSON keys; changes of keys are listed in the changelog.
//!
//! | task | see |
//! |---|---|
//! | health | [`status`](fn@status) |
//! | messages | [`page`], [`show`] |
//! | relays | [`relays`](fn@relays) |
//! | missing deliveries | [`Question`] |
//! | history of an aggregate | [`Timeline`], [`effects`] |
//! | loss, order and effects of a span | [`prove`](fn@prove) |
//! | previews of pauses | [`pauses`], [`preview_pause`], [`preview_unpause`] |
//! | previews of changes | [`preview`], [`preview_resume`], [`preview_forget`] |
//! | causes of failures | [`causes`](fn@causes), [`causes_of_aggregate`] |
//! | operations | [`list_operations`], [`show_operation`], [`carry_out`] |
//! | lag of consumers, and forecast | [`consumers`](fn@consumers), [`ListedConsumer`] |
//! | consistency of the set-up | [`doctor`] |
//! | rights of each component | [`rights`] |
//! | dead letters of consumers | [`group_letters`], [`read_letters`], [`show_letter`] |
//! | changes of dead letters | [`LetterChange`], [`carry_out_letters`] |
//!
//! Invariant: only [`carry_out`], [`carry_out_letters`] and [`carry_out_by_key`] change an outbox
//! or an inbox. No value contains an unmasked payload or a server address.
//!
//! Results are not snapshots: relays continue to work between the reads.

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
mod plan;
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
pub mod web;
mod why;
pub mod words;

pub use audit::{
    OperationDetail, OperationRow, list_inbox_operations, list_operations, show_inbox_operation,
    show_operation,
};
pub use change::{Change, ErrorCount, PREVIEW_MAX, Preview, carry_out, preview, preview_rest};
pub use consumers::{CONSUMER_BEHIND_AFTER, ConsumerRow, consumers, consumers_on_stream};
pub use failing::{capture, failing};
pub use forecast::{Forecast, ListedConsumer, Outlook};
pub use forget::preview_forget;
pub use holes::Hole;
pub use letters::{
    GroupFingerprint, GroupFingerprintError, LetterChange, LetterDetail, LetterGroup, LetterRow,
    carry_out_by_key, carry_out_letters, group_letters, read_letters, show_letter,
};
pub use messages::{MessageDetail, MessageRow, PayloadView, page, show};
pub use next::{Command, Next};
pub use pause::{PauseRow, pauses, preview_pause, preview_unpause, publishing_of};
pub use plan::Plan;
pub use prove::{
    ConsumerBooks, ConsumerFloor, FACTS_MAX, Findings, Found, HoleOf, Holes, OutboxBooks, Proof, ProofError,
    ProofRequest, RowsKept, StreamBooks, Verdict, prove,
};
pub use recheck::{CauseNow, Holds, Obstacle, RECHECKED_MAX, Refused, causes, causes_of_aggregate};
pub use relays::{RelayRow, relays};
pub use resume::preview_resume;
pub use status::{BacklogCounts, BrokerCheck, ConsumerCounts, PartitionCounts, RelayCounts, Status, status};
pub use stream_view::{InboxView, NoStream, Refuses, StreamView, answered, look_ahead};
pub use table::{Column, Columns};
pub use timeline::{Effect, EffectOutcome, EffectRow, Timeline, TimelineEvent, effects};
pub use verdict::{Reason, State};
pub use why::{
    Cause, Explanation, Finding, MessageOrAggregate, Numbers, Question, Reader, Readers, earlier_events,
};
pub use words::quoted;
