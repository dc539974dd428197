//! Detects a PostgreSQL pooler that shares sessions: clients get another session after each
//! transaction, so a client's settings, such as the search path, reach other clients. No server
//! answer identifies a pooler.

use sea_orm::sqlx::postgres::{PgConnectOptions, PgConnection};
use sea_orm::sqlx::{self, AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use uuid::Uuid;

/// Maximum test rounds. A busy pooler can assign the same session by chance.
const LOOKS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Pooler {
    #[error("a setting of one connection was lost, or appeared on another connection: sessions are shared")]
    SharesSessions,
    #[error(
        "the pooler accepts a connection without parameters, but rejects the parameters of the driver or of `options`"
    )]
    RefusesParameters,
}

pub(super) async fn shares_sessions(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    let options = options.clone().extra_float_digits(None);
    let mut first = options.connect().await?;
    // A login limited to one connection cannot be tested, so it is accepted.
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

/// Whether a setting of `first` is lost or appears on `second`. The open transaction of `second`
/// occupies the session that a pooler would assign to `first`.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Greeting {
    Ready,
    Error,
    Foreign,
}

pub(super) async fn greeting_to_tls(options: &PgConnectOptions) -> std::io::Result<Greeting> {
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    Ok(match first_byte(options, &SSL_REQUEST).await? {
        b'S' | b'N' => Greeting::Ready,
        b'E' => Greeting::Error,
        _ => Greeting::Foreign,
    })
}

/// PgBouncer reports rejected parameters and an outage of PostgreSQL with the same code.
pub(super) async fn refuses_parameters(options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
    if let Ok(connection) = options.clone().extra_float_digits(None).connect().await {
        connection.close().await?;
        return Ok(true);
    }
    let parameter = options.get_options();
    Ok(parameter.is_some()
        && greeting_to_login(options, parameter).await? == Greeting::Error
        && greeting_to_login(options, None).await? == Greeting::Ready)
}

async fn greeting_to_login(options: &PgConnectOptions, parameter: Option<&str>) -> std::io::Result<Greeting> {
    let (user, database) = (options.get_username(), options.get_database());
    let mut texts = vec!["user", user, "database", database.unwrap_or(user)];
    if let Some(parameter) = parameter {
        texts.extend(["options", parameter]);
    }
    texts.push("");
    let mut message = vec![0, 0, 0, 0, 0, 3, 0, 0];
    for text in texts {
        message.extend_from_slice(text.as_bytes());
        message.push(0);
    }
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    message[..4].copy_from_slice(&length.to_be_bytes());
    Ok(match first_byte(options, &message).await? {
        b'R' => Greeting::Ready,
        b'E' => Greeting::Error,
        _ => Greeting::Foreign,
    })
}

async fn first_byte(options: &PgConnectOptions, request: &[u8]) -> std::io::Result<u8> {
    let host = options.get_host();
    #[cfg(unix)]
    {
        let socket = options.get_socket().map(std::path::PathBuf::as_path);
        let folder = socket.or_else(|| host.starts_with('/').then(|| std::path::Path::new(host)));
        if let Some(folder) = folder {
            let socket = folder.join(format!(".s.PGSQL.{}", options.get_port()));
            return exchanged(tokio::net::UnixStream::connect(socket).await?, request).await;
        }
    }
    let stream = tokio::net::TcpStream::connect((host, options.get_port())).await?;
    exchanged(stream, request).await
}

async fn exchanged(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &[u8]) -> std::io::Result<u8> {
    stream.write_all(request).await?;
    stream.read_u8().await
}
