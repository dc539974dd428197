//! A deduplication store in Redis, for handlers with effects outside the database.
//!
//! Redis holds one string per (consumer, event): `c:<token>` for a claim, with its lease as time to
//! live, or `d:<token>` for a recorded effect, with its retention. Each operation is one atomic
//! script over one key. The token identifies the holder of a claim. Clusters are not supported.
//!
//! If Redis loses a key, the event is applied again. Redis loses writes not yet on disk
//! (`appendonly`), writes not replicated before a failover, and evicted keys (`maxmemory-policy`).

use std::time::Duration;

use outbox_core::dedup::{ClaimToken, DedupFuture, DedupKey, DedupStore, DedupStoreError, StoreClaim};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, FromRedisValue, RedisError, Script, ServerErrorKind};
use tokio::time::timeout;
use uuid::Uuid;

/// The client of the crate `redis`, in the version that this crate uses.
pub use redis::Client as RedisClient;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Claims an event. Returns 0 for a new claim, 1 if the effect is recorded, 2 if another claim is
/// in progress.
const CLAIM: &str = "
if redis.call('SET', KEYS[1], 'c:' .. ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
if string.sub(redis.call('GET', KEYS[1]), 1, 2) == 'd:' then return 1 end
return 2";

/// Records an effect. Returns 1 if the effect is recorded under this token, 0 if another token has
/// recorded the effect or holds the claim.
const COMPLETE: &str = "
local value = redis.call('GET', KEYS[1])
if value == 'd:' .. ARGV[1] then return 1 end
if value and value ~= 'c:' .. ARGV[1] then return 0 end
redis.call('SET', KEYS[1], 'd:' .. ARGV[1], 'PX', ARGV[2])
return 1";

const RELEASE: &str = "
if redis.call('GET', KEYS[1]) == 'c:' .. ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// A [`DedupStore`] in Redis, tested with version 7. Needs the feature `redis`, or `redis-tls` for
/// `rediss://`.
///
/// Each method is one round trip and ends within 5 s. Clones share the connection.
///
/// ```no_run
/// use outbox_inbox::redis::RedisDedupStore;
///
/// # fn open() -> Result<(), outbox_inbox::DedupStoreError> {
/// let store = RedisDedupStore::new("redis://127.0.0.1:6379/1")?.with_prefix("shop");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisDedupStore {
    client: Client,
    connection: std::sync::Arc<tokio::sync::OnceCell<ConnectionManager>>,
    prefix: String,
}

impl std::fmt::Debug for RedisDedupStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisDedupStore")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl RedisDedupStore {
    /// Creates a store at `redis://[user:password@]host[:port][/database]`. The store connects at
    /// the first use, and again after an error.
    ///
    /// # Errors
    ///
    /// [`DedupStoreError::Configuration`] if the address is malformed.
    pub fn new(url: &str) -> Result<Self, DedupStoreError> {
        let client = Client::open(url).map_err(|error| {
            DedupStoreError::configuration(
                "malformed Redis address; use `redis://[user:password@]host[:port][/database]`",
                Some(error.into()),
            )
        })?;
        Ok(Self::with_client(client))
    }

    /// Creates a store over a client with other options, for example certificates.
    #[must_use]
    pub fn with_client(client: Client) -> Self {
        Self {
            client,
            connection: std::sync::Arc::default(),
            prefix: "outbox-dedup".to_owned(),
        }
    }

    /// Sets the prefix of each key: `<prefix>:<consumer>:<event id>`. Default: `outbox-dedup`.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    async fn connection(&self) -> Result<ConnectionManager, RedisError> {
        let open = async || {
            let config = ConnectionManagerConfig::new()
                .set_connection_timeout(Some(TIMEOUT))
                .set_response_timeout(Some(TIMEOUT))
                .set_number_of_retries(1);
            ConnectionManager::new_lazy_with_config(self.client.clone(), config)
        };
        self.connection.get_or_try_init(open).await.cloned()
    }

    async fn run<T: FromRedisValue>(
        &self,
        script: &str,
        key: &DedupKey,
        token: u128,
        time: Duration,
    ) -> Result<T, DedupStoreError> {
        let key = format!("{}:{}:{}", self.prefix, key.consumer, key.event_id);
        let script = Script::new(script);
        let mut call = script.key(key);
        call.arg(format!("{token:x}")).arg(millis(time));
        self.bounded(async { call.invoke_async(&mut self.connection().await?).await })
            .await
    }

    async fn bounded<T>(
        &self,
        operation: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, DedupStoreError> {
        match timeout(TIMEOUT, operation).await {
            Ok(answer) => answer.map_err(failure),
            Err(elapsed) => Err(DedupStoreError::unavailable(
                format!("Redis did not answer within {TIMEOUT:?}"),
                Some(elapsed.into()),
            )),
        }
    }

    async fn info(&self) -> Result<Vec<String>, DedupStoreError> {
        let sections = async {
            let mut connection = self.connection().await?;
            let mut text = String::new();
            for section in ["memory", "persistence"] {
                let mut command = redis::cmd("INFO");
                text += &command
                    .arg(section)
                    .query_async::<String>(&mut connection)
                    .await?;
            }
            Ok(text)
        };
        Ok(warnings(&self.bounded(sections).await?))
    }
}

impl DedupStore for RedisDedupStore {
    fn claim<'a>(&'a self, key: &'a DedupKey, lease: Duration) -> DedupFuture<'a, StoreClaim> {
        Box::pin(async move {
            let token = Uuid::now_v7().as_u128();
            Ok(match self.run::<u8>(CLAIM, key, token, lease).await? {
                0 => StoreClaim::Mine(ClaimToken::new(token)),
                1 => StoreClaim::Done,
                _ => StoreClaim::InProgress,
            })
        })
    }

    fn complete<'a>(
        &'a self,
        key: &'a DedupKey,
        token: ClaimToken,
        retention: Duration,
    ) -> DedupFuture<'a, bool> {
        Box::pin(self.run(COMPLETE, key, token.get(), retention))
    }

    fn release<'a>(&'a self, key: &'a DedupKey, token: ClaimToken) -> DedupFuture<'a, ()> {
        Box::pin(async move {
            let run = self.run::<u8>(RELEASE, key, token.get(), Duration::ZERO);
            run.await.map(drop)
        })
    }

    fn preflight(&self, _: Duration) -> DedupFuture<'_, Vec<String>> {
        Box::pin(self.info())
    }
}

fn failure(error: RedisError) -> DedupStoreError {
    let refused = matches!(
        error.kind(),
        ErrorKind::AuthenticationFailed
            | ErrorKind::InvalidClientConfig
            | ErrorKind::Server(ServerErrorKind::NoPerm | ServerErrorKind::Moved)
    ) || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
    if refused {
        let context = "Redis rejects the client; correct address, user, password and rights (commands: EVAL, \
                       EVALSHA, SET, GET, DEL, INFO)";
        return DedupStoreError::configuration(context, Some(error.into()));
    }
    DedupStoreError::unavailable("Redis request failed", Some(error.into()))
}

/// Clamps a time to live: Redis rejects zero and values that overflow when added to the current
/// time.
fn millis(time: Duration) -> u64 {
    const YEARS: u64 = 100 * 366 * 24 * 3600 * 1000;
    u64::try_from(time.as_millis())
        .unwrap_or(u64::MAX)
        .clamp(1, YEARS)
}

fn warnings(info: &str) -> Vec<String> {
    let value = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let mut warnings = Vec::new();
    if value("maxmemory").is_some_and(|bytes| bytes != "0")
        && let Some(policy) = value("maxmemory_policy").filter(|policy| *policy != "noeviction")
    {
        warnings.push(format!(
            "Redis evicts keys when its memory is full (maxmemory-policy {policy}), and their events are \
             applied again; set it to noeviction"
        ));
    }
    if value("aof_enabled") == Some("0") {
        warnings.push(
            "Redis has no append-only file (appendonly no), so after a Redis crash events may be applied \
             again; set it to yes"
                .to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests;
