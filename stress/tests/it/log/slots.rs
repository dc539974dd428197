//! A server without a free slot.

use outbox_log::{LogError, PostgresLog};

use super::{Place, number, pool};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_setup_without_a_free_slot_fails_and_leaves_no_trace() {
    let Some(place) = Place::private(&["max_replication_slots=1"]).await else {
        return;
    };
    let name = format!("{}_b", place.name);
    place.execute(&format!("CREATE SCHEMA {name}")).await;
    let db = pool(&place.url, &name).await;
    outbox_sea_orm::migration::migrate(&db).await.unwrap();
    let log = PostgresLog::new(db.clone(), &place.url).unwrap();
    let log = log.named(&name).unwrap();
    for error in [log.check().await.unwrap_err(), log.init().await.unwrap_err()] {
        assert!(matches!(&error, LogError::Setup { .. }), "{error:?}");
        assert!(
            error.to_string().contains("raise max_replication_slots"),
            "{error}"
        );
    }
    let status = log.status().await.unwrap();
    assert!(!status.is_on && !status.takes_new && !status.exists, "{status:?}");
    for what in [
        format!("SELECT count(*) FROM pg_publication WHERE pubname = '{name}_log'"),
        format!("SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}_log'"),
        "SELECT count(*) FROM pg_class WHERE oid = to_regclass('outbox_log')".to_owned(),
    ] {
        assert_eq!(number(&db, &what).await, 0, "{what}");
    }
    place.write(&["1"], 3).await;
    place.run(place.published()).await;

    place.log().drop().await.unwrap();
    log.init().await.unwrap();
    assert!(log.status().await.unwrap().is_on);
    place.close().await;
}
