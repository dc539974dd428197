//! Set-up, status and removal of a log, and their errors.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use outbox_core::OutboxStore as _;
use outbox_core::SetupKind;
use outbox_core::log::MessageLog as _;
use outbox_core::shutdown::CancellationToken;
use outbox_core::{RelayConfig, RelayError, StoreError};
use outbox_log::{LogError, PostgresLog};
use outbox_test_servers::{Rerun, Server};
use outbox_testing::{backend_url, not_applicable};
use sea_orm::{ConnectionTrait as _, Database};

use crate::support::{Place, init, sleep};

crate::on_a_log! {
    drop_marks_passed_messages_as_published,
    pending_row_is_not_published_from_the_log,
    log_accepts_passwords_and_parameters_of_the_pool,
    idle_reader_does_not_block_drop,
    second_log_of_the_same_tables_is_refused,
    name_of_another_program_is_refused,
}

crate::without_a_log! {
    init_status_and_drop_are_repeatable,
    a_publication_with_a_filter_or_columns_is_refused,
    polling_relay_reports_the_log_at_its_start,
    unread_messages_are_counted,
    a_publication_of_another_table_is_refused,
    relay_without_a_log_reports_the_remedy,
    missing_tables_are_named,
    error_names_the_user_without_replication,
    slow_writer_only_delays_init,
    drop_keeps_the_slot_of_another_program,
}

async fn init_status_and_drop_are_repeatable(place: &Place) {
    let log = place.log();
    let before = log.status().await.unwrap();
    assert!(!before.exists && !before.is_on && before.stored.is_none());
    for _ in 0..2 {
        for _ in 0..2 {
            init(&log).await;
        }
        place.write(0..3, 2).await;
        let status = log.status().await.unwrap();
        assert!(
            status.exists && status.is_on && !status.is_read && !status.is_lost,
            "{status:?}"
        );
        assert!(status.retained_bytes.is_some_and(|bytes| bytes > 0));
        assert_eq!(place.rows(4).await, 6);
        for _ in 0..2 {
            log.drop().await.unwrap();
        }
        assert!(!log.status().await.unwrap().exists);
        assert_eq!(
            (place.rows(4).await, place.rows(0).await),
            (0, 6),
            "no message belongs to the log"
        );
        place.execute("DELETE FROM outbox_messages").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readable_view_shows_logged_messages() {
    let Some(place) = Place::open().await else { return };
    place.write(0..1, 1).await;
    let logged = "SELECT count(*) FROM outbox_messages_readable WHERE status = 'logged'";
    assert_eq!((place.number(logged).await, place.rows(4).await), (1, 1));
    place.close().await;
}

async fn drop_marks_passed_messages_as_published(place: &Place) {
    place.publish_and_pass().await;
    place.log().drop().await.unwrap();
    assert_eq!(place.rows(4).await, 0);
    assert!(place.rows(1).await >= 6, "the position had passed them");
    let dated = "SELECT count(*) FROM outbox_messages WHERE status = 1 AND published_at IS NULL";
    assert_eq!(place.number(dated).await, 0);
}

/// A filter or a column list would hide messages or columns from the reader.
async fn a_publication_with_a_filter_or_columns_is_refused(place: &Place) {
    let publication = format!("{}_log", place.name);
    for of_table in [
        "outbox_messages WHERE (status = 4)",
        "outbox_messages (id, row_id)",
    ] {
        place
            .execute(&format!(
                "DROP PUBLICATION IF EXISTS {publication}; CREATE PUBLICATION {publication} FOR TABLE {of_table} \
                 WITH (publish = 'insert', publish_via_partition_root = true)"
            ))
            .await;
        assert!(place.log().init().await.is_err(), "{of_table}");
    }
}

async fn pending_row_is_not_published_from_the_log(place: &Place) {
    let relay = place.relay().with_config(RelayConfig::default());
    let shutdown = CancellationToken::new();
    let scenario = async {
        place.write(0..3, 2).await;
        place.published().await;
        place
            .execute("ALTER TABLE outbox_messages ALTER COLUMN status SET DEFAULT 0")
            .await;
        place.write(0..3, 2).await;
        place.published().await;
        let refused = place.log().init().await.unwrap_err().to_string();
        assert!(refused.contains("stop the log relays"), "{refused}");
        shutdown.cancel();
    };
    let (report, ()) = tokio::join!(relay.run(shutdown.clone()), scenario);
    report.unwrap();
    assert_eq!((place.rows(4).await, place.rows(1).await), (6, 6));
    let status = place.log().status().await.unwrap();
    assert!(status.is_on && !status.takes_new, "{status:?}");
    init(&place.log()).await;
    assert!(place.log().status().await.unwrap().takes_new);
    place.log().drop().await.unwrap();
}

async fn polling_relay_reports_the_log_at_its_start(place: &Place) {
    let store = outbox_sea_orm::SqlStore::new(place.db.clone());
    let is_told = async || {
        let warnings = store.preflight(true).await.unwrap();
        warnings
            .iter()
            .any(|warning| warning.kind == SetupKind::LeftToLog)
    };
    assert!(!is_told().await);
    init(&place.log()).await;
    assert!(is_told().await);
    place.log().drop().await.unwrap();
    assert!(!is_told().await);
}

async fn unread_messages_are_counted(place: &Place) {
    let log = place.log();
    init(&log).await;
    assert_eq!(log.status().await.unwrap().undecided, 0);
    place.write(0..3, 2).await;
    let status = log.status().await.unwrap();
    assert_eq!(status.undecided, 6);
    assert!(
        status.oldest_undecided.is_some() && status.stored_ago.is_some(),
        "{status:?}"
    );
    assert!(status.behind_bytes.is_some_and(|bytes| bytes > 0), "{status:?}");
    log.drop().await.unwrap();
    let status = log.status().await.unwrap();
    assert_eq!((status.undecided, status.behind_bytes), (0, None));
}

async fn a_publication_of_another_table_is_refused(place: &Place) {
    place.execute("CREATE TABLE other (n bigint PRIMARY KEY)").await;
    place
        .execute(&format!("CREATE PUBLICATION {}_log FOR TABLE other", place.name))
        .await;
    let error = place.log().init().await.unwrap_err();
    assert!(error.to_string().contains("set it up again"), "{error}");
}

async fn relay_without_a_log_reports_the_remedy(place: &Place) {
    let error = place.relay().run(Default::default()).await.unwrap_err();
    assert!(
        matches!(error, RelayError::Store(StoreError::Setup { .. })),
        "{error:?}"
    );
    let text = outbox_core::describe(&error);
    assert!(
        text.contains("PostgresLog::init") && text.contains("polling relay"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_wal_level_error_names_the_setting() {
    let Some(url) = backend_url("OUTBOX_TEST_POSTGRES_URL") else {
        return;
    };
    let log = PostgresLog::new(Database::connect(&url).await.unwrap(), &url).unwrap();
    let error = log.init().await.unwrap_err();
    assert!(matches!(&error, LogError::Setup { .. }), "{error:?}");
    assert!(error.to_string().contains("wal_level = logical"), "{error}");
}

async fn missing_tables_are_named(place: &Place) {
    place
        .execute(&format!("CREATE SCHEMA {}_empty", place.name))
        .await;
    let mut options = sea_orm::ConnectOptions::new(&place.url);
    options.set_schema_search_path(format!("{}_empty", place.name));
    let log = PostgresLog::new(Database::connect(options).await.unwrap(), &place.url)
        .unwrap()
        .named(&format!("{}_e", place.name))
        .unwrap();
    let error = log.init().await.unwrap_err();
    assert!(error.to_string().contains("run the migration first"), "{error}");
    log.drop().await.unwrap();
}

async fn error_names_the_user_without_replication(place: &Place) {
    let user = format!("{}_user", place.name);
    place.execute(&format!("CREATE ROLE {user} LOGIN")).await;
    let url = place.url.replace("postgres@", &format!("{user}@"));
    let log = PostgresLog::new(place.db.clone(), &url)
        .unwrap()
        .named(&place.name)
        .unwrap();
    let error = log.init().await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains(&format!("ALTER ROLE \"{user}\" REPLICATION")),
        "{error}"
    );
    place.execute(&format!("ALTER ROLE {user} REPLICATION")).await;
    init(&log).await;
    assert!(log.open().await.unwrap().is_some());
}

async fn log_accepts_passwords_and_parameters_of_the_pool(place: &Place) {
    let user = format!("{}_user", place.name);
    place
        .execute(&format!(
            "DO $$ BEGIN CREATE ROLE outbox_password; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$; \
             SET LOCAL password_encryption = 'scram-sha-256'; \
             CREATE ROLE {user} LOGIN REPLICATION PASSWORD 'a\u{ad}b' IN ROLE outbox_password"
        ))
        .await;
    let (_, server) = place.url.rsplit_once('@').unwrap();
    let url = format!("postgres://{server}?user={user}&hostaddr=127.0.0.1&password=");
    let reader = place.log_over(&place.db, &format!("{url}a%C2%ADb")).open().await;
    assert!(reader.unwrap().is_some());
    if place
        .log_over(&place.db, &format!("{url}wrong"))
        .open()
        .await
        .is_ok()
    {
        not_applicable("this PostgreSQL asks for no password");
    }
    place.execute(&format!("DROP ROLE {user}")).await;
}

/// A relay detects that its log is gone when the relay stores its position.
async fn idle_reader_does_not_block_drop(place: &Place) {
    let log = place.log();
    let reader = log.open().await.unwrap();
    assert!(reader.is_some());
    log.drop().await.unwrap();
    assert!(!log.status().await.unwrap().exists);
    drop(reader);
}

/// Two logs of the same tables would publish each message twice.
async fn second_log_of_the_same_tables_is_refused(place: &Place) {
    let second = place.log().named(&format!("{}_b", place.name)).unwrap();
    for error in [
        second.check().await.unwrap_err(),
        second.init().await.unwrap_err(),
    ] {
        assert!(matches!(&error, LogError::Setup { .. }), "{error:?}");
        let expected = format!("already has a log named {};", place.name);
        assert!(error.to_string().contains(&expected), "{error}");
    }
    assert!(!second.status().await.unwrap().exists, "no slot was created");
    place.log().drop().await.unwrap();
    second.check().await.unwrap();
    init(&second).await;
    second.drop().await.unwrap();
}

async fn slow_writer_only_delays_init(place: &Place) {
    let writer = outbox_sea_orm::OutboxConnection::new(place.db.clone(), Default::default());
    let tx = writer.begin().await.unwrap();
    outbox_sea_orm::record(&tx, [outbox_testing::conformance::probe::Probe::noted("slow", 1)])
        .await
        .unwrap();
    let log = place.log();
    let slow = async {
        sleep(1_500).await;
        tx.commit().await.unwrap();
    };
    tokio::join!(init(&log), slow);
    assert_eq!(
        (place.rows(0).await, place.rows(4).await),
        (1, 0),
        "the message was recorded before the log began"
    );
    place.write(0..2, 1).await;
    assert_eq!(place.rows(4).await, 2);
}

async fn name_of_another_program_is_refused(place: &Place) {
    place.drop_slot().await;
    place
        .execute(&format!(
            "SELECT pg_catalog.pg_create_logical_replication_slot('{}_log', 'test_decoding')",
            place.name
        ))
        .await;
    let error = place.log().open().await.unwrap_err();
    assert!(error.to_string().contains("another program"), "{error}");
    place.drop_slot().await;
}

/// All databases of a server share slot names, and logs have the same default name.
async fn drop_keeps_the_slot_of_another_program(place: &Place) {
    let slot = format!("{}_log", place.name);
    let make = format!("SELECT pg_catalog.pg_create_logical_replication_slot('{slot}', 'test_decoding')");
    let count = format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'");
    place.execute(&make).await;
    let error = place.log().drop().await.unwrap_err();
    assert!(error.to_string().contains("another program"), "{error}");
    assert_eq!(place.number(&count).await, 1);
    place.drop_slot().await;
    init(&place.log()).await;
    place.drop_slot().await;
    place.execute(&make).await;
    place.log().drop().await.unwrap();
    assert_eq!(
        place.number(&count).await,
        1,
        "the log is dropped, and the slot belongs to another program"
    );
    place.drop_slot().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn environment_and_password_file_match_the_pool() {
    let Some(program) = backend_url("OUTBOX_TEST_POSTGRES_BIN") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let hba = folder.path().join("hba.conf");
    let admit = |method: &str| {
        let lines = ["all", "replication"].map(|of| format!("host {of} all 127.0.0.1/32 {method}\n"));
        std::fs::write(&hba, lines.concat()).unwrap();
    };
    admit("trust");
    let hba_file = format!("hba_file={}", hba.display());
    let settings = ["wal_level=logical", &hba_file];
    let mut server = Server::postgres(program.as_ref(), &settings).unwrap();
    server.start().await.unwrap();
    let db = server.connect(1).await.unwrap();
    db.execute_unprepared("ALTER ROLE postgres PASSWORD 'pa:ss'")
        .await
        .unwrap();
    admit("scram-sha-256");
    db.execute_unprepared("SELECT pg_reload_conf()").await.unwrap();
    let file = folder.path().join("pgpass");
    std::fs::write(&file, "127.0.0.1:*:*:postgres:pa\\:ss\n").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let file = file.display().to_string();
    for (variable, value, is_admitted) in [
        ("PGPASSWORD", "pa:ss", true),
        ("PGPASSWORD", "other", false),
        ("PGPASSFILE", file.as_str(), true),
    ] {
        let run = Rerun::of(&["drop_marks_passed_messages_as_published"])
            .with("OUTBOX_TEST_POSTGRES_LOGICAL_URL", server.url())
            .with(variable, value)
            .run()
            .await;
        assert_eq!(run.is_ok(), is_admitted, "{variable}: {run:?}");
    }
}
