//! Detects a pooler that assigns another PostgreSQL session after each transaction, which would
//! apply one client's settings, such as the search path, to others. No answer identifies a pooler.

use sea_orm::sqlx::postgres::{PgConnectOptions, PgConnection};
use sea_orm::sqlx::{self, AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use uuid::Uuid;

/// A busy pooler may pass a round.
const LOOKS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a setting of one connection was lost, or appeared on another connection: sessions are shared")]
pub(crate) struct SharesSessions;

pub(super) async fn shares_sessions(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let options = options.clone().extra_float_digits(None);
    let mut first = options.connect().await?;
    // A login limited to one connection cannot be tested.
    let Ok(mut second) = options.connect().await else {
        first.close().await?;
        return Ok(false);
    };
    let mut is_shared = false;
    for _ in 0..LOOKS {
        is_shared = look(&mut first, &mut second).await?;
        if is_shared {
            break;
        }
    }
    second.close().await?;
    first.close().await?;
    Ok(is_shared)
}

/// The open transaction occupies the session that a pooler would assign to `first`.
async fn look(first: &mut PgConnection, second: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let mark = Uuid::now_v7().to_string();
    first
        .execute(sqlx::raw_sql(AssertSqlSafe(format!(
            "SELECT set_config('outbox.session', '{mark}', false)"
        ))))
        .await?;
    second.execute(sqlx::raw_sql("BEGIN")).await?;
    let is_shared =
        marked(second).await?.as_ref() == Some(&mark) || marked(first).await?.as_ref() != Some(&mark);
    second.execute(sqlx::raw_sql("ROLLBACK")).await?;
    Ok(is_shared)
}

async fn marked(connection: &mut PgConnection) -> Result<Option<String>, sqlx::Error> {
    let row = connection
        .fetch_one(sqlx::raw_sql("SELECT current_setting('outbox.session', true)"))
        .await?;
    row.try_get(0)
}
