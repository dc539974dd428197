//! The signatures of the store traits, shared by all test doubles of stores.

/// The types of the signatures. A module that calls [`store_methods!`](crate::store_methods)
/// imports them.
pub mod store_types {
    pub use std::num::NonZeroU32;
    pub use std::time::Duration;

    pub use outbox_core::message::{Aggregate, Message, MessageId};
    pub use outbox_core::store::*;
    pub use time::OffsetDateTime;

    /// The result of every method.
    pub type StoreResult<T> = Result<T, StoreError>;
}

/// Implements methods of [`OutboxStore`](outbox_core::OutboxStore),
/// [`OutboxAdmin`](outbox_core::OutboxAdmin), [`OutboxReader`](outbox_core::OutboxReader),
/// [`OutboxAudit`](outbox_core::OutboxAudit) and [`Operator`](crate::Operator) with a common body:
/// a macro that receives `self`, the method name and the arguments.
///
/// ```
/// use outbox_testing::store_types::*;
/// use outbox_testing::{MemoryStore, store_methods};
///
/// /// A store that counts no backlog.
/// struct Uncounted(MemoryStore);
///
/// macro_rules! forward {
///     ($self:ident, $method:ident($($argument:expr),*)) => {
///         $self.0.$method($($argument),*).await
///     };
/// }
///
/// impl OutboxStore for Uncounted {
///     store_methods!(self, forward; preflight announce relays acquire renew release leave fetch
///         fetch_waiting settle purge pauses finish_pauses);
///
///     async fn backlog(&self) -> Result<Backlog, StoreError> {
///         Ok(Backlog::default())
///     }
/// }
/// ```
#[macro_export]
macro_rules! store_methods {
    ($self:ident, $body:ident; $($method:ident)*) => {
        $($crate::__store_method!($self $body $method);)*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __store_method {
    ($self:ident $body:ident $method:ident ($($name:ident: $type:ty),*) $result:ty) => {
        async fn $method(&$self $(, $name: $type)*) -> StoreResult<$result> {
            $body!($self, $method($($name),*))
        }
    };
    // `OutboxStore`.
    ($self:ident $body:ident preflight) => { $crate::__store_method! { $self $body preflight (deletes: bool) Vec<SetupProblem> } };
    ($self:ident $body:ident announce) => { $crate::__store_method! { $self $body announce (owner: OwnerId, ttl: Duration, announcement: &Announcement) Relays } };
    ($self:ident $body:ident relays) => { $crate::__store_method! { $self $body relays () Vec<LiveRelay> } };
    ($self:ident $body:ident acquire) => { $crate::__store_method! { $self $body acquire (owner: OwnerId, ttl: Duration, max: u16) Vec<Lease> } };
    ($self:ident $body:ident renew) => { $crate::__store_method! { $self $body renew (owner: OwnerId, leases: &[Lease], ttl: Duration) Vec<Lease> } };
    ($self:ident $body:ident release) => { $crate::__store_method! { $self $body release (owner: OwnerId, leases: &[Lease]) () } };
    ($self:ident $body:ident leave) => { $crate::__store_method! { $self $body leave (owner: OwnerId) () } };
    ($self:ident $body:ident fetch) => { $crate::__store_method! { $self $body fetch (request: FetchRequest<'_>) Fetched } };
    ($self:ident $body:ident fetch_waiting) => { $crate::__store_method! { $self $body fetch_waiting (request: WaitingRequest<'_>) Fetched } };
    ($self:ident $body:ident settle) => { $crate::__store_method! { $self $body settle (leases: &[Lease], settlements: &[Settlement]) usize } };
    ($self:ident $body:ident purge) => { $crate::__store_method! { $self $body purge (request: PurgeRequest) Purged } };
    ($self:ident $body:ident pauses) => { $crate::__store_method! { $self $body pauses () Vec<Pause> } };
    ($self:ident $body:ident finish_pauses) => { $crate::__store_method! { $self $body finish_pauses () bool } };
    ($self:ident $body:ident backlog) => { $crate::__store_method! { $self $body backlog () Backlog } };
    // `OutboxAdmin`.
    ($self:ident $body:ident list) => { $crate::__store_method! { $self $body list (selection: &Selection, limit: NonZeroU32) Vec<StoredMessage> } };
    ($self:ident $body:ident page) => { $crate::__store_method! { $self $body page (selection: &Selection, from: PageFrom, limit: NonZeroU32) Vec<StoredMessage> } };
    ($self:ident $body:ident blocked) => { $crate::__store_method! { $self $body blocked (limit: NonZeroU32) Vec<BlockedAggregate> } };
    ($self:ident $body:ident forget_idle) => { $crate::__store_method! { $self $body forget_idle (aggregate_type: &str, idle_for: Duration) u64 } };
    ($self:ident $body:ident published) => { $crate::__store_method! { $self $body published (from: OffsetDateTime, until: OffsetDateTime, after: Option<MessageId>, limit: NonZeroU32) Vec<Message> } };
    // `OutboxReader`.
    ($self:ident $body:ident find) => { $crate::__store_method! { $self $body find (id: MessageId) Option<FoundMessage> } };
    ($self:ident $body:ident recorded_between) => { $crate::__store_method! { $self $body recorded_between (from: OffsetDateTime, until: OffsetDateTime, after: Option<MessageId>, limit: NonZeroU32) Vec<StoredMessage> } };
    ($self:ident $body:ident search_published) => { $crate::__store_method! { $self $body search_published (search: &PublishedSearch) PublishedFound } };
    ($self:ident $body:ident head) => { $crate::__store_method! { $self $body head (aggregate: &Aggregate) Option<AggregateHead> } };
    ($self:ident $body:ident block) => { $crate::__store_method! { $self $body block (aggregate: &Aggregate) Option<BlockedAggregate> } };
    ($self:ident $body:ident expired_relays) => { $crate::__store_method! { $self $body expired_relays () Vec<ExpiredRelay> } };
    ($self:ident $body:ident partitions) => { $crate::__store_method! { $self $body partitions () Vec<PartitionOwner> } };
    // `OutboxAudit`.
    ($self:ident $body:ident advance) => { $crate::__store_method! { $self $body advance (operation: &Operation, at_most: NonZeroU32) Operation } };
    ($self:ident $body:ident resume_as) => { $crate::__store_method! { $self $body resume_as (aggregate: &Aggregate, operation: &Operation) bool } };
    ($self:ident $body:ident forget_as) => { $crate::__store_method! { $self $body forget_as (aggregates: &[Aggregate], operation: &Operation) Forgotten } };
    ($self:ident $body:ident pause_as) => { $crate::__store_method! { $self $body pause_as (request: &PauseRequest, operation: &Operation) bool } };
    ($self:ident $body:ident unpause_as) => { $crate::__store_method! { $self $body unpause_as (aggregate_type: Option<&str>, operation: &Operation) bool } };
    ($self:ident $body:ident write_down) => { $crate::__store_method! { $self $body write_down (operation: &Operation) () } };
    ($self:ident $body:ident finish) => { $crate::__store_method! { $self $body finish (id: OperationId, changed: u64) () } };
    ($self:ident $body:ident operations) => { $crate::__store_method! { $self $body operations (filter: &OperationFilter, limit: NonZeroU32) Vec<Operation> } };
    ($self:ident $body:ident operation) => { $crate::__store_method! { $self $body operation (id: OperationId) Option<Operation> } };
    ($self:ident $body:ident messages_of) => { $crate::__store_method! { $self $body messages_of (id: OperationId) OperationMessages } };
    // `Operator`.
    ($self:ident $body:ident retry) => { $crate::__store_method! { $self $body retry (selection: &Selection) u64 } };
    ($self:ident $body:ident skip) => { $crate::__store_method! { $self $body skip (selection: &Selection) u64 } };
    ($self:ident $body:ident replay) => { $crate::__store_method! { $self $body replay (selection: &Selection) u64 } };
    ($self:ident $body:ident resume) => { $crate::__store_method! { $self $body resume (aggregate: &Aggregate) bool } };
    ($self:ident $body:ident forget) => { $crate::__store_method! { $self $body forget (aggregates: &[Aggregate]) Forgotten } };
    ($self:ident $body:ident pause) => { $crate::__store_method! { $self $body pause (request: &PauseRequest) bool } };
    ($self:ident $body:ident unpause) => { $crate::__store_method! { $self $body unpause (aggregate_type: Option<&str>) bool } };
}
