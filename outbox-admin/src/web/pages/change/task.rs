//! What is to be done, as an address or a form describes it, and how it is done.

use std::time::Duration;

use outbox_core::{
    Aggregate, Intent, MessageStatus, Operation, OperationId, OperationKind as Kind, OperationScope,
    OutboxAudit, PauseRequest, Selection,
};
use outbox_inbox::{DeadLetterSelection, DeadLetters};
use serde::Deserialize;
use uuid::Uuid;

use crate::input;
use crate::web::filter::{self, Filter, given, storable};
use crate::web::pages::letters::{fingerprint, of_consumer};
use crate::web::visit::Problem;
use crate::web::{App, Changes};
use crate::{
    Change, GroupFingerprint, LetterChange, LetterRow, PauseChanged, apply_pause, apply_resume,
    apply_unpause, carry_out_by_key, list_letters, pause_operation, unpause_operation,
};

/// What is to be done. An empty field narrows nothing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(in crate::web) struct Asked {
    /// The kind of the operation.
    pub(super) change: String,
    /// `yes` if nothing narrows the selection on purpose.
    all: String,
    /// A message, or a dead letter of a consumer.
    id: String,
    status: String,
    aggregate: String,
    #[serde(rename = "type")]
    event_type: String,
    since: String,
    until: String,
    /// Of a pause; empty for all messages.
    aggregate_type: String,
    /// How long a pause lasts; empty: until an operator ends it.
    lasts: String,
    consumer: String,
    /// A group of dead letters of consumers.
    fingerprint: String,
    /// How many of a group, the oldest first; empty for all.
    first: String,
    /// Only in a form, as the token.
    pub(super) reason: String,
    pub(super) token: String,
}

/// What is to be done, checked.
#[derive(Debug, Clone)]
pub(super) enum Task {
    Messages(Change, Box<Selection>),
    Resume(Aggregate),
    Pause(Option<String>, Option<Duration>),
    Unpause(Option<String>),
    Letters(LetterChange, Letters),
    PauseConsumer(String),
    ResumeConsumer(String),
}

/// Dead letters of consumers.
#[derive(Debug, Clone)]
pub(super) enum Letters {
    One(Uuid),
    Group(DeadLetterSelection, GroupFingerprint, usize),
}

/// What a change has done.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) changed: u64,
    pub(super) operation: Option<OperationId>,
}

impl Asked {
    /// The fields of a form that repeats this.
    pub(super) fn fields(&self) -> [(&'static str, &str); 13] {
        [
            ("change", &self.change),
            ("all", &self.all),
            ("id", &self.id),
            ("status", &self.status),
            ("aggregate", &self.aggregate),
            ("type", &self.event_type),
            ("since", &self.since),
            ("until", &self.until),
            ("aggregate_type", &self.aggregate_type),
            ("lasts", &self.lasts),
            ("consumer", &self.consumer),
            ("fingerprint", &self.fingerprint),
            ("first", &self.first),
        ]
    }

    pub(super) fn task(&self) -> Result<Task, Problem> {
        let paused = || {
            storable(&self.aggregate_type)?;
            Ok::<_, Problem>(given(&self.aggregate_type).map(str::to_owned))
        };
        Ok(match Kind::from(self.change.as_str()) {
            Kind::Retry => Task::Messages(Change::Retry, self.messages()?),
            Kind::Skip => Task::Messages(Change::Skip, self.messages()?),
            Kind::Resume => Task::Resume(filter::aggregate(&self.aggregate)?),
            Kind::Pause => {
                let lasts = given(&self.lasts).map(filter::lasts).transpose()?;
                Task::Pause(paused()?, lasts)
            }
            Kind::Unpause => Task::Unpause(paused()?),
            Kind::RetryLetters => Task::Letters(LetterChange::Retry, self.letters()?),
            Kind::CancelRetry => Task::Letters(LetterChange::CancelRetry, self.letters()?),
            Kind::DiscardLetters => Task::Letters(LetterChange::Discard, self.letters()?),
            Kind::PauseConsumer => Task::PauseConsumer(self.consumer()?),
            Kind::ResumeConsumer => Task::ResumeConsumer(self.consumer()?),
            _ => return Err(Problem::Malformed("there is no such change here".to_owned())),
        })
    }

    fn messages(&self) -> Result<Box<Selection>, Problem> {
        let filter = Filter {
            id: self.id.clone(),
            status: self.status.clone(),
            aggregate: self.aggregate.clone(),
            event_type: self.event_type.clone(),
            since: self.since.clone(),
            until: self.until.clone(),
            ..Filter::default()
        };
        if filter.is_wide() && self.all != "yes" {
            let text = "nothing is selected; name a message or a filter, or say `all=yes`";
            return Err(Problem::Malformed(text.to_owned()));
        }
        Ok(Box::new(filter.selection()?.status(MessageStatus::Dead)))
    }

    fn letters(&self) -> Result<Letters, Problem> {
        if let Some(id) = given(&self.id) {
            return Ok(Letters::One(input::letter_id(id).map_err(Problem::Malformed)?));
        }
        let Some(group) = fingerprint(&self.fingerprint)? else {
            let text = "nothing is selected; name a dead letter or the fingerprint of a group";
            return Err(Problem::Malformed(text.to_owned()));
        };
        let malformed = |_| Problem::Malformed("`first` is no number".to_owned());
        let first = given(&self.first).map(|first| first.parse().map_err(malformed));
        let most = first.transpose()?.unwrap_or(usize::MAX);
        Ok(Letters::Group(of_consumer(&self.consumer)?, group, most))
    }

    fn consumer(&self) -> Result<String, Problem> {
        let missing = || Problem::Malformed("no consumer is named".to_owned());
        storable(&self.consumer)?;
        given(&self.consumer).map(str::to_owned).ok_or_else(missing)
    }
}

impl Letters {
    /// The dead letters that a change takes, oldest first.
    pub(super) async fn read<S>(
        &self,
        app: &App<S>,
        letters: &DeadLetters,
        change: LetterChange,
    ) -> Result<Vec<LetterRow>, Problem> {
        match self {
            Self::One(id) => {
                let selection = change.narrow(&DeadLetterSelection::ids([*id]));
                app.ask(list_letters(letters, &selection, 1)).await
            }
            Self::Group(selection, group, most) => {
                let selection = change.narrow(selection);
                let of_group = crate::letters_of_group(letters, &selection, *group, *most);
                Ok(app.ask(of_group).await?.0)
            }
        }
    }
}

fn only_reads() -> Problem {
    Problem::Forbidden("this dashboard only reads".to_owned())
}

/// The reason of a pause whose operator gave none.
const NO_REASON: &str = "no reason was given";

impl Task {
    /// Whether the application has given the dashboard what the change goes through.
    pub(super) fn may_be_made<S>(&self, changes: &Changes<S>) -> bool {
        match self {
            Self::Messages(..) | Self::Resume(_) | Self::Pause(..) | Self::Unpause(_) => {
                changes.store.is_some()
            }
            Self::Letters(..) => changes.letters.is_some(),
            Self::PauseConsumer(_) | Self::ResumeConsumer(_) => changes.consumers.is_some(),
        }
    }

    pub(super) async fn carry_out<S: OutboxAudit>(
        self,
        app: &App<S>,
        intent: Intent,
    ) -> Result<Done, Problem> {
        match self {
            Self::Letters(change, of) => carry_out_letters(app, change, &of, intent).await,
            Self::PauseConsumer(name) => change_consumer(app, &name, true, intent).await,
            Self::ResumeConsumer(name) => change_consumer(app, &name, false, intent).await,
            of_outbox => {
                let store = app.changes.store.as_ref().ok_or_else(only_reads)?;
                of_outbox.carry_out_in(store, intent).await
            }
        }
    }

    async fn carry_out_in(self, store: &impl OutboxAudit, intent: Intent) -> Result<Done, Problem> {
        let of_pause = |paused: PauseChanged| Done {
            changed: paused.changed.into(),
            operation: paused.operation,
        };
        Ok(match self {
            Self::Messages(change, selection) => {
                let applied = crate::apply(store, change, &selection, intent).await?;
                Done {
                    changed: applied.messages,
                    operation: applied.operation,
                }
            }
            Self::Resume(aggregate) => {
                let resumed = apply_resume(store, &aggregate, intent).await?;
                Done {
                    changed: resumed.resumed.into(),
                    operation: resumed.operation,
                }
            }
            Self::Pause(aggregate_type, lasts) => {
                let operation = pause_operation(aggregate_type.as_deref(), intent.clone());
                let request = PauseRequest {
                    aggregate_type,
                    reason: intent.reason.unwrap_or_else(|| NO_REASON.to_owned()),
                    by: intent.actor,
                    lasts,
                };
                of_pause(apply_pause(store, &request, &operation).await?)
            }
            Self::Unpause(aggregate_type) => {
                let operation = unpause_operation(aggregate_type.as_deref(), intent);
                of_pause(apply_unpause(store, aggregate_type.as_deref(), &operation).await?)
            }
            Self::Letters(..) | Self::PauseConsumer(_) | Self::ResumeConsumer(_) => return Err(only_reads()),
        })
    }
}

async fn carry_out_letters<S>(
    app: &App<S>,
    change: LetterChange,
    of: &Letters,
    intent: Intent,
) -> Result<Done, Problem> {
    let letters = app.changes.letters.as_ref().ok_or_else(only_reads)?;
    let rows = of.read(app, letters, change).await?;
    let keys: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let operation = match of {
        Letters::One(id) => change.operation(&DeadLetterSelection::ids([*id]), intent),
        Letters::Group(selection, group, _) => change.operation_on_group(selection, *group, intent),
    };
    let done = carry_out_by_key(letters, change, &keys, &operation).await?;
    Ok(Done {
        changed: done.dead_letters,
        operation: done.operation,
    })
}

/// One transaction: after a crash the change took effect and its operation is written down, or neither.
async fn change_consumer<S>(app: &App<S>, name: &str, pause: bool, intent: Intent) -> Result<Done, Problem> {
    let consumers = app.changes.consumers.as_ref().ok_or_else(only_reads)?;
    let reason = intent.reason.clone().unwrap_or_else(|| NO_REASON.to_owned());
    let kind = if pause {
        Kind::PauseConsumer
    } else {
        Kind::ResumeConsumer
    };
    let operation = Operation::new(kind, OperationScope::names([name]), intent);
    let consumers = consumers.clone().written_down(&operation);
    let is_changed = match pause {
        true => consumers.pause(name, &reason).await?,
        false => consumers.resume(name).await?,
    };
    Ok(Done {
        changed: is_changed.into(),
        operation: is_changed.then_some(operation.id),
    })
}
