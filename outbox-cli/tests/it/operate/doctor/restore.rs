//! Problems of one table restored alone, or a clock set back.

use sea_orm::ConnectionTrait as _;

use super::{checks, doctor, found, next, sound, statement};
use crate::operate::answer::ask;
use crate::place::{Kind, Place};

async fn execute(place: &Place, sql: &str) {
    place.db.execute_unprepared(sql).await.unwrap();
}

fn table(place: &Place, name: &str) -> String {
    let schema = place.schema.as_ref();
    schema.map_or(name.to_owned(), |schema| format!("{schema}.{name}"))
}

#[tokio::test]
async fn outdated_aggregate_numbers_are_found() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::MariaDb] {
        let Some(planted) = sound(kind).await else {
            continue;
        };
        let place = &planted.place;
        let aggregates = table(place, "outbox_aggregates");
        for restored in [
            format!("UPDATE {aggregates} SET last_sequence = last_sequence - 1"),
            format!("DELETE FROM {aggregates}"),
        ] {
            execute(place, &restored).await;
            let answer = doctor(place, &[]).expect(4);
            assert_eq!(checks(&answer), ["numbers"], "{kind:?}: {restored}");
            execute(place, &statement(&answer, "numbers")).await;
            assert_eq!(found(&doctor(place, &[]).expect(0)), []);
        }
        planted.close().await;
    }
}

#[tokio::test]
async fn missing_or_future_leases_are_found() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::MariaDb] {
        let Some(planted) = sound(kind).await else {
            continue;
        };
        let place = &planted.place;
        let leases = table(place, "outbox_leases");
        execute(place, &format!("DELETE FROM {leases} WHERE partition_no = 7")).await;
        let answer = doctor(place, &[]).expect(4);
        assert!(checks(&answer).contains(&"leases".to_owned()), "{answer:?}");
        assert_eq!(next(&answer, "leases"), "outbox migrate --yes");
        ask(place, "migrate --yes").expect(0);
        assert_eq!(found(&doctor(place, &[]).expect(0)), []);
        let ahead = match kind {
            Kind::Postgres | Kind::Logical => "now() + interval '2 hours'",
            Kind::MariaDb => "UTC_TIMESTAMP(6) + INTERVAL 2 HOUR",
            Kind::Sqlite => "(CAST(strftime('%s', 'now') AS INTEGER) + 7200) * 1000000",
        };
        let relays = table(place, "outbox_relays");
        let owner = format!("owner = (SELECT owner FROM {relays} LIMIT 1)");
        execute(
            place,
            &format!("UPDATE {leases} SET {owner}, expires_at = {ahead} WHERE partition_no < 3"),
        )
        .await;
        let answer = doctor(place, &[]).expect(3);
        assert_eq!(checks(&answer), ["leases"], "{kind:?}");
        assert_eq!(next(&answer, "leases"), "outbox relay list");
        planted.close().await;
    }
}
