//! Checks at the start that the tables exist and the role has the required rights.

use outbox_sea_orm::OutboxConfig;
use sea_orm::{ConnectionTrait, DatabaseConnection, DbBackend, DbErr, Statement};

use crate::database::{Trouble, is_denied, trouble};
use crate::dedup::sql::InboxSql;
use crate::handler::{Registration, Strategy, describe};
use crate::start_error::Problem;

const USAGE: &str = "USAGE";
const ALL: &[&str] = &["SELECT", "INSERT", "UPDATE", "DELETE"];
const NUMBERS: &[&str] = &["SELECT", "INSERT", "UPDATE"];

pub(crate) async fn problems(
    db: &DatabaseConnection,
    sql: &InboxSql,
    outbox: &OutboxConfig,
    handlers: &[Registration],
) -> Result<Vec<Problem>, DbErr> {
    let mut problems = Vec::new();
    let sequenced = |handler: &Registration| matches!(handler.options.strategy, Strategy::Sequence { .. });
    let mut of_inbox = vec![
        (sql.messages(), ALL),
        (sql.dead_letters(), ALL),
        (sql.pauses(), &["SELECT"][..]),
    ];
    if handlers.iter().any(sequenced) {
        of_inbox.push((sql.sequences(), NUMBERS));
    }
    for (table, rights) in of_inbox {
        problems.extend(missing(db, table, rights).await?);
        problems.extend(hidden(db, table).await?);
    }
    if let Some(handler) = handlers.iter().find(|handler| handler.records()) {
        let table = |name| outbox.names.table(sql.backend(), name);
        let mut of_outbox = vec![
            (table("outbox_messages"), &["INSERT"][..]),
            (table("outbox_aggregates"), NUMBERS),
        ];
        if sql.backend() == DbBackend::Postgres {
            of_outbox.push((table("outbox_row_ids"), &[USAGE]));
        }
        for (table, rights) in of_outbox {
            let rights = match sql.backend() {
                DbBackend::MySql => &[],
                _ => rights,
            };
            match missing(db, &table, rights).await {
                Ok(found) => {
                    problems.extend(found);
                    if rights != [USAGE] {
                        problems.extend(hidden(db, &table).await?);
                    }
                }
                Err(error) if trouble(&error) == Trouble::Statement => {
                    problems.push(Problem::new(format!(
                        "handler {handler} records events, but table `{table}` of the outbox cannot be used \
                         ({}); run the migration (`outbox::migrate(&db)`, `outbox_sea_orm::migrate(&db)`, or \
                         the SQL in docs/sql), or name the tables with `Inbox::with_outbox`",
                        describe(&error)
                    )));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(problems)
}

pub(crate) async fn hidden(db: &DatabaseConnection, table: &str) -> Result<Option<Problem>, DbErr> {
    if db.get_database_backend() != DbBackend::Postgres {
        return Ok(None);
    }
    let active = "SELECT pg_catalog.row_security_active($1) AS active";
    let asked = Statement::from_sql_and_values(DbBackend::Postgres, active, [table.into()]);
    let row = db.query_one_raw(asked).await?;
    let is_active = row.map_or(Ok(false), |row| row.try_get("", "active"))?;
    Ok(is_active.then(|| {
        Problem::new(format!(
            "row-level security hides rows of {table} from this login; let a superuser run `ALTER ROLE … BYPASSRLS` for it, or the owner \
             `ALTER TABLE {table} DISABLE ROW LEVEL SECURITY`"
        ))
    }))
}

async fn missing(db: &DatabaseConnection, table: &str, rights: &[&str]) -> Result<Option<Problem>, DbErr> {
    let mut denied = Vec::new();
    match db.get_database_backend() {
        DbBackend::Postgres => {
            for right in rights {
                let granted = match *right {
                    USAGE => "has_sequence_privilege($1, 'USAGE')".to_owned(),
                    "DELETE" => "has_table_privilege($1, 'DELETE')".to_owned(),
                    right => format!(
                        "has_table_privilege($1, '{right}') OR has_any_column_privilege($1, '{right}')"
                    ),
                };
                let granted = format!("SELECT {granted} AS granted");
                let asked = Statement::from_sql_and_values(DbBackend::Postgres, granted, [table.into()]);
                let row = db.query_one_raw(asked).await?;
                if !row.map_or(Ok(false), |row| row.try_get("", "granted"))? {
                    denied.push(*right);
                }
            }
        }
        DbBackend::MySql => {
            let asked = if rights.is_empty() {
                &["SELECT"][..]
            } else {
                rights
            };
            for right in asked {
                let probe = match *right {
                    "INSERT" => format!("INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0"),
                    "UPDATE" => format!("UPDATE {table} SET consumer = consumer WHERE 1 = 0"),
                    "DELETE" => format!("DELETE FROM {table} WHERE 1 = 0"),
                    _ => format!("SELECT 1 FROM {table} WHERE 1 = 0"),
                };
                match db.execute_unprepared(&probe).await {
                    Err(error) if is_denied(&error) => denied.push(*right),
                    outcome => {
                        outcome?;
                    }
                }
            }
            if rights.is_empty() {
                denied.clear();
            }
        }
        _ => {
            let exists = format!("SELECT 1 FROM {table} WHERE 1 = 0");
            db.execute_unprepared(&exists).await?;
        }
    }
    if denied.is_empty() {
        return Ok(None);
    }
    let (rights, role) = (denied.join(", "), role(db).await?);
    let kind = if denied == [USAGE] { "SEQUENCE " } else { "" };
    Ok(Some(Problem::new(format!(
        "role {role} lacks rights on `{table}`; run `GRANT {rights} ON {kind}{table} TO {role}`"
    ))))
}

async fn role(db: &DatabaseConnection) -> Result<String, DbErr> {
    let backend = db.get_database_backend();
    let sql = match backend {
        DbBackend::Postgres => "SELECT quote_ident(current_user) AS role",
        _ => "SELECT CURRENT_USER() AS role",
    };
    let row = db.query_one_raw(Statement::from_string(backend, sql)).await?;
    let role = row.map_or_else(|| Ok(String::new()), |row| row.try_get::<String>("", "role"))?;
    Ok(match role.rsplit_once('@') {
        Some((user, host)) if backend == DbBackend::MySql => format!("'{user}'@'{host}'"),
        _ => role,
    })
}

pub(crate) fn pool_warning(connections: Option<u32>, consumers: usize, jobs: usize) -> Option<String> {
    let connections = usize::try_from(connections?).ok()?;
    (connections < jobs).then(|| {
        format!(
            "the pool has {connections} connections, and {consumers} consumers may run {jobs} handlers at \
             once, so handlers may time out waiting for a connection; set `max_connections` to at least {}, \
             or a lower `InboxConfig::concurrency`",
            jobs + 2
        )
    })
}

pub(crate) fn connections_max(db: &DatabaseConnection) -> Option<u32> {
    match db.get_database_backend() {
        _ if db.is_mock_connection() => None,
        #[cfg(feature = "postgres")]
        DbBackend::Postgres => Some(db.get_postgres_connection_pool().options().get_max_connections()),
        #[cfg(feature = "mysql")]
        DbBackend::MySql => Some(db.get_mysql_connection_pool().options().get_max_connections()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_smaller_than_handlers_causes_warning() {
        let warning = pool_warning(Some(15), 2, 16).unwrap();
        assert!(warning.contains("`max_connections` to at least 18"), "{warning}");
        for connections in [Some(16), Some(18), None] {
            assert_eq!(pool_warning(connections, 2, 16), None);
        }
    }
}
