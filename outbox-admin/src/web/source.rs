//! What the pages ask: an outbox of any store, and what the application knows of its stream.
//!
//! Invariant: pages have the outbox that reads; only a change has the other one.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Aggregate, EventId, Intent, Message, MessageId, OperationFilter, OperationId, OutboxAudit, PageFrom,
    PauseRequest, Selection, SensitiveFields, StoreError, describe,
};
use serde::Serialize;
use time::OffsetDateTime;

use crate::doctor::Examination;
use crate::of_aggregate::of_aggregate;
use crate::serial;
use crate::timeline;
use crate::{
    Applied, BlockedRow, BrokerCheck, CauseNow, Change, ConsumerRow, EffectRow, Explanation, Handed, LogView,
    MessageDetail, MessageRow, OperationDetail, OperationRow, PartitionRow, PauseChanged, PausePreview,
    PauseRow, Preview, Proof, ProofStage, Question, Readers, Refused, RelayRow, ResumePreview, Resumed,
    RowsKept, Status, StreamUse, Timeline,
};

/// What the inboxes of a stream's consumers say about events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InboxView {
    /// Their rows.
    pub rows: Vec<EffectRow>,
    /// The consumers of the stream, each with the stream sequence up to which it has acknowledged everything.
    pub floors: Vec<(String, u64)>,
    /// What could not be looked at, for people.
    pub unseen: Vec<String>,
}

/// The span of a proof: messages that were recorded at `since` or later, and before `until`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ProofSpan {
    /// Its beginning.
    #[serde(serialize_with = "serial::time")]
    pub since: OffsetDateTime,
    /// Its end.
    #[serde(serialize_with = "serial::time")]
    pub until: OffsetDateTime,
}

/// Says why the broker would refuse a message now, or `None`.
pub type Refuses = Box<dyn Fn(&Message) -> Option<Refused> + Send + Sync>;

/// Names the consumers whose filters take a message.
pub type TakersOf = Box<dyn Fn(&Message) -> Vec<String> + Send + Sync>;

/// The durable consumers of a stream at a moment, and which of them are handed a message once it is published.
pub struct Takers {
    /// The names of all of them.
    pub consumers: Vec<String>,
    /// The names of those whose filters take a message.
    pub of: TakersOf,
}

impl fmt::Debug for Takers {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = formatter.debug_struct("Takers");
        debug.field("consumers", &self.consumers).finish_non_exhaustive()
    }
}

/// What a dashboard can find out about the stream of its outbox. Each answer is bounded in time by the implementation, and by the dashboard once more.
#[async_trait]
pub trait StreamView: Send + Sync + 'static {
    /// Whether the stream is there and takes messages.
    async fn broker(&self) -> BrokerCheck {
        BrokerCheck::NotAsked
    }

    /// The stream sequence of a published message; `None` if it is not on the stream. The error is for people.
    async fn locate(&self, _message: &Message) -> Result<Option<u64>, String> {
        Err("this dashboard does not know the stream".to_owned())
    }

    /// How the stream stands, as what says why it would refuse a message now: for the preview of a change that has messages tried again. Nothing is published. The
    /// error is for people.
    async fn refuses(&self) -> Result<Refuses, String> {
        Err("this dashboard does not know the stream".to_owned())
    }

    /// Which consumers are handed a message once it is published: for the preview of a retry, which also asks [`Self::inboxes`] what they remember. Nothing is published.
    /// The error is for people.
    async fn takers(&self) -> Result<Takers, String> {
        Err("this dashboard does not know the consumers".to_owned())
    }

    /// Since when the outbox keeps the rows of published messages. Missing rows of that time are reported. Default: [`RowsKept::Nothing`], and none is reported.
    fn rows_kept(&self) -> RowsKept {
        RowsKept::Nothing
    }

    /// The consumers of the stream. The error is for people.
    async fn consumers(&self) -> Result<Vec<ConsumerRow>, String> {
        Ok(Vec::new())
    }

    /// How the stream is filled, asked each two seconds while somebody looks; `None` if it is not known. The error is for people.
    async fn filled(&self) -> Result<Option<StreamUse>, String> {
        Ok(None)
    }

    /// What the inboxes of the stream's consumers say about these events. The error is for people.
    async fn inboxes(&self, _events: &[EventId]) -> Result<InboxView, String> {
        Err("this dashboard does not know the inboxes".to_owned())
    }

    /// The consumers of a message that is on the stream, with this stream sequence, and what their inboxes say of its event. The error is for people.
    async fn readers(&self, _message: &Message, _stream_sequence: u64) -> Result<Readers, String> {
        Err("this dashboard does not know the consumers".to_owned())
    }

    /// How the log of a log relay stands, asked each ten seconds; `None` if there is none. The error is for people.
    async fn log(&self) -> Result<Option<LogView>, String> {
        Ok(None)
    }

    /// Draws up the ledger of a span with [`prove`](fn@crate::prove), and changes nothing. The dashboard runs one at a time, and drops it after ten minutes, or when
    /// somebody ends it. `progress` may be told what is done, and how much was read for it. The error is for people.
    async fn prove(
        &self,
        _span: ProofSpan,
        _progress: &(dyn Fn(ProofStage, u64) + Send + Sync),
    ) -> Result<Proof, String> {
        Err("this dashboard was not told how to read its stream; `outbox prove` does it".to_owned())
    }

    /// Examines database, stream, consumers and settings together, at most twice a minute. The error is for people.
    async fn examine(&self) -> Result<Examination, String> {
        Err("this dashboard was not told how to examine its servers; `outbox doctor` does it".to_owned())
    }
}

/// A stream of which nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NoStream;

impl StreamView for NoStream {}

/// A message or an aggregate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    Message(MessageId),
    Aggregate(Aggregate),
}

/// An outbox, whatever its store is.
#[async_trait]
pub(super) trait Outbox: Send + Sync {
    async fn status(&self, broker: &BrokerCheck) -> Result<Status, StoreError>;
    async fn page(
        &self,
        selection: &Selection,
        from: PageFrom,
        limit: NonZeroU32,
    ) -> Result<Vec<MessageRow>, StoreError>;
    /// The messages of one aggregate, oldest first, in a bounded number of rows; with what was not looked through.
    async fn of_aggregate(
        &self,
        aggregate: &Aggregate,
        selection: &Selection,
        limit: NonZeroU32,
    ) -> Result<(Vec<MessageRow>, Vec<String>), StoreError>;
    async fn show(
        &self,
        id: MessageId,
        shown: Option<&SensitiveFields>,
    ) -> Result<Option<MessageDetail>, StoreError>;
    async fn why(&self, stream: &dyn StreamView, subject: &Subject) -> Result<Explanation, StoreError>;
    async fn timeline(
        &self,
        stream: &dyn StreamView,
        aggregate: &Aggregate,
        selection: Selection,
        limit: NonZeroU32,
    ) -> Result<Timeline, StoreError>;
    async fn blocked(&self, limit: NonZeroU32) -> Result<Vec<BlockedRow>, StoreError>;
    async fn relays(&self) -> Result<Vec<RelayRow>, StoreError>;
    async fn partitions(&self) -> Result<Vec<PartitionRow>, StoreError>;
    async fn preview(&self, change: Change, selection: &Selection) -> Result<Preview, StoreError>;
    async fn preview_resume(&self, aggregate: &Aggregate) -> Result<ResumePreview, StoreError>;
    async fn causes(
        &self,
        messages: &[MessageId],
        broker: Result<Refuses, String>,
    ) -> Result<Vec<CauseNow>, StoreError>;
    async fn causes_of_aggregate(
        &self,
        aggregate: &Aggregate,
        broker: Result<Refuses, String>,
    ) -> Result<Vec<CauseNow>, StoreError>;
    async fn handed(&self, messages: &[MessageId], takers: Takers) -> Result<Handed, StoreError>;
    async fn operations(
        &self,
        filter: &OperationFilter,
        limit: NonZeroU32,
    ) -> Result<Vec<OperationRow>, StoreError>;
    async fn operation(&self, id: OperationId) -> Result<Option<OperationDetail>, StoreError>;
    async fn apply(
        &self,
        change: Change,
        selection: &Selection,
        intent: Intent,
    ) -> Result<Applied, StoreError>;
    async fn apply_resume(&self, aggregate: &Aggregate, intent: Intent) -> Result<Resumed, StoreError>;
    async fn pauses(&self) -> Result<Vec<PauseRow>, StoreError>;
    async fn preview_pause(
        &self,
        aggregate_type: Option<&str>,
        lasts: Option<Duration>,
    ) -> Result<PausePreview, StoreError>;
    async fn preview_unpause(&self, aggregate_type: Option<&str>) -> Result<PausePreview, StoreError>;
    async fn apply_pause(&self, request: &PauseRequest, intent: Intent) -> Result<PauseChanged, StoreError>;
    async fn apply_unpause(
        &self,
        aggregate_type: Option<&str>,
        intent: Intent,
    ) -> Result<PauseChanged, StoreError>;
}

/// Longest wait for what makes an answer better, and is not needed for it.
const ANSWERED_MAX: Duration = Duration::from_secs(2);

/// A page does not fail because the stream is silent.
async fn answered<T>(question: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let answer = tokio::time::timeout(ANSWERED_MAX, question).await;
    answer.unwrap_or_else(|_| Err(format!("no answer within {ANSWERED_MAX:?}")))
}

/// An outbox over a store.
#[derive(Debug)]
pub(super) struct Over<S>(pub(super) S);

#[async_trait]
impl<S: OutboxAudit> Outbox for Over<S> {
    async fn status(&self, broker: &BrokerCheck) -> Result<Status, StoreError> {
        crate::status(&self.0, broker).await
    }

    async fn page(
        &self,
        selection: &Selection,
        from: PageFrom,
        limit: NonZeroU32,
    ) -> Result<Vec<MessageRow>, StoreError> {
        crate::page(&self.0, selection, from, limit).await
    }

    async fn of_aggregate(
        &self,
        aggregate: &Aggregate,
        selection: &Selection,
        limit: NonZeroU32,
    ) -> Result<(Vec<MessageRow>, Vec<String>), StoreError> {
        let head = self.0.head(aggregate).await?;
        let found = of_aggregate(&self.0, aggregate, head.as_ref(), selection, limit).await?;
        let rows = found.messages.into_iter().map(MessageRow::from).collect();
        Ok((rows, found.unseen))
    }

    async fn show(
        &self,
        id: MessageId,
        shown: Option<&SensitiveFields>,
    ) -> Result<Option<MessageDetail>, StoreError> {
        crate::show(&self.0, id, shown).await
    }

    async fn why(&self, stream: &dyn StreamView, subject: &Subject) -> Result<Explanation, StoreError> {
        let mut question = match subject {
            Subject::Message(id) => Question::of_message(&self.0, *id).await?,
            Subject::Aggregate(aggregate) => Question::of_aggregate(&self.0, aggregate).await?,
        };
        if let Err(error) = question.look_for_holes(&self.0, stream.rows_kept()).await {
            question.without_holes(describe(&error));
        }
        if let Some(message) = question.failing() {
            let refuses = answered(stream.refuses()).await;
            let refused = refuses.map(|refuses| refuses(message));
            question.refused(refused);
        }
        if let Some(message) = question.published() {
            let found = stream.locate(message).await;
            question.located(found);
        }
        if let Some((message, stream_sequence)) = question.on_stream() {
            let readers = answered(stream.readers(message, stream_sequence)).await;
            question.read_by(readers);
        }
        Ok(question.explain())
    }

    async fn timeline(
        &self,
        stream: &dyn StreamView,
        aggregate: &Aggregate,
        selection: Selection,
        limit: NonZeroU32,
    ) -> Result<Timeline, StoreError> {
        let mut timeline = timeline::list_events(&self.0, aggregate, selection, limit).await?;
        for place in 0..timeline.events.len() {
            if let Some(message) = timeline::to_locate(&self.0, &timeline, place).await? {
                let found = stream.locate(&message).await;
                timeline.located(place, found);
            }
        }
        let is_on_stream = timeline
            .events
            .iter()
            .any(|event| event.stream_sequence.is_some());
        if is_on_stream {
            match stream.inboxes(&timeline.event_ids()).await {
                Ok(view) => {
                    timeline.join(&view.rows, &view.floors);
                    timeline.unseen.extend(view.unseen);
                }
                Err(error) => timeline.unseen.push(format!("inboxes: {error}")),
            }
            crate::follow_ups(&self.0, &mut timeline).await?;
        }
        Ok(timeline)
    }

    async fn blocked(&self, limit: NonZeroU32) -> Result<Vec<BlockedRow>, StoreError> {
        crate::blocked(&self.0, limit).await
    }

    async fn relays(&self) -> Result<Vec<RelayRow>, StoreError> {
        crate::relays(&self.0).await
    }

    async fn partitions(&self) -> Result<Vec<PartitionRow>, StoreError> {
        crate::partitions(&self.0).await
    }

    async fn preview(&self, change: Change, selection: &Selection) -> Result<Preview, StoreError> {
        crate::preview(&self.0, change, selection, None).await
    }

    async fn preview_resume(&self, aggregate: &Aggregate) -> Result<ResumePreview, StoreError> {
        crate::preview_resume(&self.0, aggregate).await
    }

    async fn causes(
        &self,
        messages: &[MessageId],
        broker: Result<Refuses, String>,
    ) -> Result<Vec<CauseNow>, StoreError> {
        crate::causes(&self.0, messages, broker).await
    }

    async fn causes_of_aggregate(
        &self,
        aggregate: &Aggregate,
        broker: Result<Refuses, String>,
    ) -> Result<Vec<CauseNow>, StoreError> {
        crate::causes_of_aggregate(&self.0, aggregate, broker).await
    }

    async fn handed(&self, messages: &[MessageId], takers: Takers) -> Result<Handed, StoreError> {
        crate::handed(&self.0, messages, takers.consumers, takers.of).await
    }

    async fn operations(
        &self,
        filter: &OperationFilter,
        limit: NonZeroU32,
    ) -> Result<Vec<OperationRow>, StoreError> {
        crate::list_operations(&self.0, filter, limit).await
    }

    async fn operation(&self, id: OperationId) -> Result<Option<OperationDetail>, StoreError> {
        crate::show_operation(&self.0, id).await
    }

    async fn apply(
        &self,
        change: Change,
        selection: &Selection,
        intent: Intent,
    ) -> Result<Applied, StoreError> {
        crate::apply(&self.0, change, selection, intent).await
    }

    async fn apply_resume(&self, aggregate: &Aggregate, intent: Intent) -> Result<Resumed, StoreError> {
        crate::apply_resume(&self.0, aggregate, intent).await
    }

    async fn pauses(&self) -> Result<Vec<PauseRow>, StoreError> {
        crate::pauses(&self.0).await
    }

    async fn preview_pause(
        &self,
        aggregate_type: Option<&str>,
        lasts: Option<Duration>,
    ) -> Result<PausePreview, StoreError> {
        crate::preview_pause(&self.0, aggregate_type, lasts).await
    }

    async fn preview_unpause(&self, aggregate_type: Option<&str>) -> Result<PausePreview, StoreError> {
        crate::preview_unpause(&self.0, aggregate_type).await
    }

    async fn apply_pause(&self, request: &PauseRequest, intent: Intent) -> Result<PauseChanged, StoreError> {
        let operation = crate::pause_operation(request.aggregate_type.as_deref(), intent);
        crate::apply_pause(&self.0, request, &operation).await
    }

    async fn apply_unpause(
        &self,
        aggregate_type: Option<&str>,
        intent: Intent,
    ) -> Result<PauseChanged, StoreError> {
        let operation = crate::unpause_operation(aggregate_type, intent);
        crate::apply_unpause(&self.0, aggregate_type, &operation).await
    }
}
