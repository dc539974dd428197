//! `outbox_record`, called with literals, rejects arguments of a wrong kind.

use sea_orm::{ConnectionTrait, DbBackend, TransactionTrait};

use crate::support::TestDb;
use crate::writers::with_writers;

crate::on_every_backend!(argument_of_a_wrong_kind_is_refused_with_its_code);

/// PostgreSQL has types for three arguments, and rejects other text before the call.
async fn argument_of_a_wrong_kind_is_refused_with_its_code(test: TestDb) {
    let test = with_writers(test).await;
    let backend = test.sql_backend();
    let name = test.names.table(backend, "outbox_record");
    let call = |payload: &str, headers: &str, id: &str| match backend {
        DbBackend::Postgres => format!(
            "SELECT {name}('probe', '1', 'noted', payload => {payload}, headers => {headers}, id => {id})"
        ),
        DbBackend::MySql => format!(
            "CALL {name}('probe', '1', 'noted', {payload}, NULL, {headers}, NULL, NULL, NULL, NULL, {id})"
        ),
        _ => format!(
            "INSERT INTO {name} (aggregate_type, aggregate_id, event_name, payload, headers, id) \
             VALUES ('probe', '1', 'noted', {payload}, {headers}, {id})"
        ),
    };
    let of = |code: &'static str, on_postgres: &'static str| match backend {
        DbBackend::Postgres => on_postgres,
        _ => code,
    };
    let no_json = "invalid input syntax for type json";
    let mut calls = vec![
        (call("'order 42'", "NULL", "NULL"), of("OB007", no_json)),
        (call("''", "NULL", "NULL"), of("OB007", no_json)),
        (call("NULL", "NULL", "NULL"), "OB007"),
        (call("'{}'", "'tenant'", "NULL"), of("OB009", no_json)),
        (call("'{}'", "'[1]'", "NULL"), "OB009"),
        (call("'{}'", r#"'{"tenant": 1}'"#, "NULL"), "OB009"),
        (call("'{}'", r#"'{"tenant": null}'"#, "NULL"), "OB009"),
        (
            call("'{}'", "NULL", "'42'"),
            of("OB014", "invalid input syntax for type uuid"),
        ),
    ];
    if backend == DbBackend::Sqlite {
        let insert = |column: &str, value: &str| {
            format!(
                "INSERT INTO {name} (aggregate_type, aggregate_id, event_name, payload, {column}) VALUES ('probe', '1', 'noted', '{{}}', {value})"
            )
        };
        calls.extend([
            (call("7", "NULL", "NULL"), "OB007"),
            (call("'{}'", "7", "NULL"), "OB009"),
            (insert("available_at", "'tomorrow'"), "OB014"),
            (insert("available_at", "1.5"), "OB014"),
            (insert("sequenced", "2"), "OB014"),
            (insert("sequenced", "'yes'"), "OB014"),
        ]);
    }
    for (call, expected) in calls {
        let tx = test.db.begin().await.unwrap();
        let error = tx.execute_unprepared(&call).await.unwrap_err().to_string();
        tx.rollback().await.unwrap();
        assert!(error.contains(expected), "{call}: {error}");
    }
    assert!(test.fetch_all().await.is_empty());
}
