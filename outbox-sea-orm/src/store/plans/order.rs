//! Checks that pending messages are looked up by aggregate and number in their index, whatever the
//! statistics say.

use super::*;

#[tokio::test]
async fn postgres() {
    let Some((db, names)) = open("OUTBOX_TEST_POSTGRES_URL").await else {
        return;
    };
    let dialect = Dialect::new(DbBackend::Postgres, &names);
    run(&db, &format!("VACUUM ANALYZE {}", dialect.messages)).await;
    fill(&db, &dialect).await;
    for statistics in ["empty", "fresh"] {
        if statistics == "fresh" {
            run(&db, &format!("ANALYZE {}", dialect.messages)).await;
        }
        let keys = blocked_keys(64);
        let messages: Vec<(Key, i64)> = keys.iter().map(|key| (key.clone(), 1)).collect();
        let in_flight: Vec<RowKey> = (1..IN_FLIGHT).map(in_flight_row).collect();
        for statement in [
            dialect.pending_among(&messages, &in_flight),
            dialect.first_pending_of(&keys, &in_flight),
            dialect.pending_of(&keys, &in_flight, 10),
        ] {
            let plan = explain_statement(&db, statement, "EXPLAIN (COSTS OFF, FORMAT JSON)").await;
            let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
            let scan = find(&plan, &|node| node["Relation Name"] == "outbox_messages");
            let scan = scan.expect("a scan of the messages");
            let index = "outbox_messages_pending_of";
            assert_eq!(scan["Index Name"], index, "{statistics}: {plan:#}");
        }
    }
}
