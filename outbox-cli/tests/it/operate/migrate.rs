//! `outbox migrate` on real databases.

use outbox::sea_orm::TableNames;
use outbox::sea_orm::migration;
use sea_orm::{ConnectionTrait as _, DbBackend};

use super::answer::{Answer, ask};
use crate::place::{Kind, Place, on_each_database};

fn states(answer: &Answer) -> Vec<(String, String)> {
    let json = answer.json();
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = json.as_array().unwrap().iter();
    let mut states: Vec<(String, String)> = rows.map(|row| (text(row, "part"), text(row, "state"))).collect();
    states.dedup();
    states
}

fn all(state: &str) -> Vec<(String, String)> {
    let parts = ["outbox", "writers", "inbox"];
    parts.map(|part| (part.to_owned(), state.to_owned())).to_vec()
}

const ALL: &[&str] = &[
    "migrate", "-o", "json", "--tables", "outbox", "--tables", "writers", "--tables", "inbox",
];

async fn missing_tables_are_created_with_migrate(kind: Kind) {
    let Some(place) = Place::open(kind).await else {
        return;
    };
    let looked = ask(&place, ALL).expect(3);
    assert_eq!(states(&looked), all("missing"));
    assert!(looked.said.contains("nothing was created"), "{looked:?}");
    assert_eq!(
        states(&ask(&place, ALL).expect(3)),
        all("missing"),
        "looking makes nothing"
    );

    let mut names = TableNames::new();
    if let Some(schema) = &place.schema {
        names = names.with_schema(schema).unwrap();
    }
    let sql = ask(&place, "migrate --sql").expect(0).out;
    assert_eq!(
        sql,
        migration::sql(place.db.get_database_backend(), &names).unwrap()
    );

    let make = [ALL, &["--yes"]].concat();
    assert_eq!(states(&ask(&place, &make).expect(0)), all("made"));
    place.record(1).await;
    assert_eq!(states(&ask(&place, &make).expect(0)), all("made"));
    assert_eq!(
        place.count("outbox_messages", "1 = 1").await,
        1,
        "what is there stays"
    );
    assert_eq!(place.count("inbox_messages", "1 = 1").await, 0);

    // The setup simulates tables created by a SeaORM migrator.
    let schema = place.schema.as_ref().map(|schema| format!("{schema}."));
    let drop = format!("DROP TABLE {}outbox_migrations", schema.unwrap_or_default());
    place.db.execute_unprepared(&drop).await.unwrap();
    let foreign = ask(&place, "migrate -o json").expect(3);
    assert_eq!(states(&foreign), [("outbox".to_owned(), "foreign".to_owned())]);
    let refused = ask(&place, "migrate --yes").expect(1);
    assert!(refused.said.contains("migrate with the same tool"), "{refused:?}");
    assert_eq!(place.count("outbox_messages", "1 = 1").await, 1);
    place.close().await;
}

#[tokio::test]
async fn tables_without_recorded_migration_are_unchanged() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    let names = TableNames::new().with_schema(&place.name).unwrap();
    migration::migrate_with(&place.db, &names).await.unwrap();
    let noted = names.table(DbBackend::Postgres, "outbox_migrations");
    place.execute(&format!("DROP TABLE {noted}")).await;
    assert_eq!(states(&ask(&place, "migrate -o json").expect(3))[0].1, "foreign");
    ask(&place, "migrate --yes").expect(1);
    place.close().await;
}

on_each_database!(missing_tables_are_created_with_migrate);
