//! Requirements on the server: a tested engine, and session settings that keep the meaning of
//! statements. Settings of text formats do not matter, because values are bound and results are
//! binary.

use sea_orm::{ConnectionTrait, DbBackend, DbErr, QueryResult, Statement};

const MYSQL: [(&str, &str, &str); 5] = [
    (
        "autocommit",
        "1",
        "statements outside transactions would not be committed",
    ),
    (
        "completion_type",
        "NO_CHAIN",
        "each commit would begin another transaction, or end the session",
    ),
    (
        "sql_select_limit",
        "18446744073709551615",
        "queries would return only part of their rows",
    ),
    ("sql_safe_updates", "0", "updates would be refused"),
    ("unique_checks", "1", "inserts would lock whole tables"),
];

const MODES: [&str; 3] = ["ORACLE", "EMPTY_STRING_IS_NULL", "SIMULTANEOUS_ASSIGNMENT"];

/// Sets all settings that [`unfit_settings`] checks, with the drivers' default `sql_mode`.
pub(crate) const FIT_MYSQL: &str = "SET SESSION autocommit = 1, completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615, \
     sql_safe_updates = 0, unique_checks = 1, sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION,PIPES_AS_CONCAT'";

/// Session settings, read from one pool session, that change the meaning of the outbox's
/// statements. None on SQLite.
#[doc(hidden)]
pub async fn unfit_settings(db: &impl ConnectionTrait) -> Result<Vec<String>, DbErr> {
    let backend = db.get_database_backend();
    let Some(question) = question(backend) else {
        return Ok(Vec::new());
    };
    let row = db
        .query_one_raw(Statement::from_string(backend, question))
        .await?;
    let row = row.ok_or_else(|| DbErr::RecordNotFound("the settings of the session".to_owned()))?;
    unfit(backend, &row)
}

pub(crate) fn question(backend: DbBackend) -> Option<String> {
    match backend {
        DbBackend::Postgres => Some(
            "SELECT pg_catalog.array_to_string(pg_catalog.current_schemas(true)::text[], ', ') AS search_path".to_owned(),
        ),
        DbBackend::MySql => {
            let columns = MYSQL.map(|(name, needed, _)| match needed {
                "0" | "1" => format!("IF(@@session.{name}, '1', '0') AS {name}"),
                _ => format!("CAST(@@session.{name} AS CHAR) AS {name}"),
            });
            Some(format!("SELECT {}, @@session.sql_mode AS sql_mode", columns.join(", ")))
        }
        _ => None,
    }
}

pub(crate) fn unfit(backend: DbBackend, row: &QueryResult) -> Result<Vec<String>, DbErr> {
    let unfit = |name: &str, value: &str, effect: &str, needed: &str| {
        format!("the setting {name} of the database's sessions is `{value}`, so {effect}; set it to {needed}")
    };
    if backend == DbBackend::Postgres {
        let value: String = row.try_get("", "search_path")?;
        // PostgreSQL searches an unlisted `pg_catalog` first. PostgreSQL searches temporary schemas
        // only for tables and types.
        let first = value.split(", ").find(|schema| !schema.starts_with("pg_temp"));
        let effect = "functions and operators of other schemas would replace those of PostgreSQL";
        let needed = "a list without pg_catalog, or with pg_catalog as its first schema";
        let is_unfit = first != Some("pg_catalog");
        return Ok(Vec::from_iter(
            is_unfit.then(|| unfit("search_path", &value, effect, needed)),
        ));
    }
    let mut found = Vec::new();
    for (name, needed, effect) in MYSQL {
        let value: String = row.try_get("", name)?;
        if value != needed {
            found.push(unfit(name, &value, effect, needed));
        }
    }
    let value: String = row.try_get("", "sql_mode")?;
    if value.split(',').any(|mode| MODES.contains(&mode)) {
        let needed = "a list without ORACLE, EMPTY_STRING_IS_NULL and SIMULTANEOUS_ASSIGNMENT";
        found.push(unfit(
            "sql_mode",
            &value,
            "statements would change their meaning",
            needed,
        ));
    }
    Ok(found)
}

const UNTESTED: [(&str, &str); 6] = [
    ("CockroachDB", "cockroach"),
    ("YugabyteDB", "-yb-"),
    ("TiDB", "tidb"),
    ("OceanBase", "oceanbase"),
    ("SingleStore", "singlestore"),
    ("Vitess", "vitess"),
];

/// The engine's name, if it only shares a protocol with PostgreSQL or MySQL. `version`: see
/// [`version_query`].
#[doc(hidden)]
pub fn untested_engine(version: &str) -> Option<&'static str> {
    let version = version.to_ascii_lowercase();
    let (name, _) = UNTESTED.iter().find(|(_, mark)| version.contains(mark))?;
    Some(name)
}

#[doc(hidden)]
pub fn version_query(backend: DbBackend) -> &'static str {
    match backend {
        DbBackend::Postgres => "SELECT pg_catalog.version()",
        DbBackend::MySql => "SELECT CONCAT(@@version, ' ', @@version_comment)",
        _ => "SELECT sqlite_version()",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untested_engines_are_named() {
        for (version, engine) in [
            (
                "8.0.11-TiDB-v8.5.0 TiDB Server (Apache License 2.0) Community Edition, MySQL 8.0 compatible",
                "TiDB",
            ),
            (
                "CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15)",
                "CockroachDB",
            ),
            (
                "PostgreSQL 11.2-YB-2.20.1.3-b0 on x86_64-pc-linux-gnu, compiled by clang",
                "YugabyteDB",
            ),
            ("5.7.25-OceanBase-v4.2.1.0 OceanBase 4.2.1.0", "OceanBase"),
            ("8.0.30-Vitess ", "Vitess"),
        ] {
            assert_eq!(untested_engine(version), Some(engine), "{version}");
        }
        for version in [
            "PostgreSQL 15.18 (Debian 15.18-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc (Debian 12.2.0-14+deb12u1) 12.2.0, 64-bit",
            "10.11.19-MariaDB-0+deb12u1 Debian 12",
            "8.4.0 MySQL Community Server - GPL",
            "8.0.36-28 Percona Server (GPL), Release 28, Revision 47601f19",
            "8.0.mysql_aurora.3.07.1 Source distribution",
            "3.45.1",
        ] {
            assert_eq!(untested_engine(version), None, "{version}");
        }
    }
}
