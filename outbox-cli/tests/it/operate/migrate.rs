//! `outbox migrate` on real databases: what is missing is said, and made when that was asked for.

use outbox::sea_orm::TableNames;
use outbox::sea_orm::migration;
use outbox::testing::eventually;
use sea_orm::{ConnectionTrait as _, DbBackend, TransactionTrait as _};

use super::answer::{Answer, ask, run};
use crate::place::{Kind, Place, on_each_database};

/// Each part with the states of its migrations; the same state is named once.
fn states(answer: &Answer) -> Vec<(String, String)> {
    let json = answer.json();
    let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
    let rows = json.as_array().unwrap().iter();
    let mut states: Vec<(String, String)> = rows.map(|row| (text(row, "part"), text(row, "state"))).collect();
    states.dedup();
    states
}

/// How many migrations an answer lists.
fn states_count(answer: &Answer) -> u64 {
    answer.json().as_array().unwrap().len().try_into().unwrap()
}

fn all(state: &str) -> Vec<(String, String)> {
    let parts = ["outbox", "writers", "inbox"];
    parts.map(|part| (part.to_owned(), state.to_owned())).to_vec()
}

const ALL: &[&str] = &[
    "migrate", "-o", "json", "--tables", "outbox", "--tables", "writers", "--tables", "inbox",
];

async fn missing_tables_are_made_when_that_was_asked_for(kind: Kind) {
    let Some(place) = Place::open(kind).await else {
        return;
    };
    let looked = ask(&place, ALL).expect(3);
    assert_eq!(states(&looked), all("missing"));
    assert!(looked.said.contains("nothing was made"), "{looked:?}");
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

    let make = [ALL, &["--yes", "--actor", "ann", "--reason", "INC-7"]].concat();
    assert_eq!(states(&ask(&place, &make).expect(0)), all("made"));
    let operations = ask(&place, "audit -o json").expect(0).json();
    let operations = operations.as_array().unwrap();
    let migrations = states_count(&ask(&place, ALL).expect(0));
    let changed: u64 = operations
        .iter()
        .map(|row| row["changed"].as_u64().unwrap())
        .sum();
    assert_eq!((operations.len(), changed), (3, migrations), "{operations:?}");
    for row in operations {
        assert_eq!(
            (&row["kind"], &row["actor"], &row["reason"], &row["is_finished"]),
            (&"migrate".into(), &"ann".into(), &"INC-7".into(), &true.into())
        );
    }
    place.record(1).await;
    assert_eq!(states(&ask(&place, &make).expect(0)), all("made"));
    let again = ask(&place, "audit -o name").expect(0).out;
    assert_eq!(again.lines().count(), 3, "what makes nothing leaves no trace");
    assert_eq!(
        place.count("outbox_messages", "1 = 1").await,
        1,
        "what is there stays"
    );
    assert_eq!(place.count("inbox_messages", "1 = 1").await, 0);

    // As if a SeaORM migrator had made the tables: it notes that elsewhere.
    let schema = place.schema.as_ref().map(|schema| format!("{schema}."));
    let drop = format!("DROP TABLE {}outbox_migrations", schema.unwrap_or_default());
    place.db.execute_unprepared(&drop).await.unwrap();
    let foreign = ask(&place, "migrate -o json").expect(3);
    assert_eq!(states(&foreign), [("outbox".to_owned(), "foreign".to_owned())]);
    let refused = ask(&place, "migrate --yes").expect(1);
    assert!(
        refused.said.contains("go on the way they were made"),
        "{refused:?}"
    );
    assert_eq!(place.count("outbox_messages", "1 = 1").await, 1);
    place.close().await;
}

#[tokio::test]
async fn tables_that_nobody_noted_are_left_alone() {
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

/// A migration that fails leaves its operation without an end, and so would a crash.
#[tokio::test]
async fn a_migration_that_breaks_off_is_written_down() {
    let Some(place) = Place::open(Kind::Postgres).await else {
        return;
    };
    ask(&place, &[ALL, &["--yes"]].concat()).expect(0);
    // The function is there, and nobody has noted it: making it again fails.
    place
        .execute(&format!("DELETE FROM {}.outbox_writer_migrations", place.name))
        .await;
    let broken = ask(&place, "migrate --tables writers --yes").expect(1);
    assert!(broken.said.contains("has not ended"), "{broken:?}");
    let last = ask(&place, "audit --limit 1 -o name").expect(0).out;
    let shown = ask(&place, &["audit", "show", last.trim_end(), "-o", "json"])
        .expect(3)
        .json();
    assert_eq!(
        (&shown["kind"], &shown["is_finished"], &shown["next"]),
        (&"migrate".into(), &false.into(), &"outbox migrate".into())
    );
    place.close().await;
}

/// Both had seen that it was missing, and both counted it.
async fn of_two_migrations_at_once_one_counts_what_was_made(kind: Kind) {
    let Some(place) = Place::open(kind).await else {
        return;
    };
    ask(&place, "migrate --yes").expect(0);
    // Both wait for the lock under which migrations are applied, after they have looked and have written down what they are about to do.
    let (lock, unlock) = match place.db.get_database_backend() {
        DbBackend::MySql => (
            "SELECT GET_LOCK('outbox_migrations', 60)",
            "DO RELEASE_LOCK('outbox_migrations')",
        ),
        // The number is "outbox".
        _ => ("SELECT pg_advisory_xact_lock(x'6f7574626f78'::int8)", "SELECT 1"),
    };
    let holder = place.db.begin().await.unwrap();
    holder.execute_unprepared(lock).await.unwrap();
    // The file is there, and must not be written anew while the other program reads it.
    let file = place.folder.path().join("outbox.toml");
    let words = [
        "migrate", "--tables", "writers", "--yes", "-o", "json", "--config",
    ];
    let words = [&words[..], &[file.to_str().unwrap()]].concat();
    let servers = [("DATABASE_URL", &*place.url), ("NATS_URL", &*place.nats)];
    let answers = std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| run(&words, &servers)));
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                eventually("two operations that have begun", async || {
                    place.count("outbox_operations", "finished_at IS NULL").await == 2
                })
                .await;
                holder.execute_unprepared(unlock).await.unwrap();
                holder.commit().await.unwrap();
            });
        });
        both.map(|one| one.join().unwrap())
    });
    for answer in answers {
        assert_eq!(
            states(&answer.expect(0)),
            [("writers".to_owned(), "made".to_owned())]
        );
    }
    let operations = ask(&place, "audit --limit 2 -o json").expect(0).json();
    let mut changed: Vec<u64> = Vec::new();
    for row in operations.as_array().unwrap() {
        assert_eq!(row["is_finished"], true, "{row}");
        changed.push(row["changed"].as_u64().unwrap());
    }
    changed.sort_unstable();
    assert_eq!(changed, [0, 1], "{operations}");
    place.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_migrations_of_postgres_at_once_one_counts_what_was_made() {
    of_two_migrations_at_once_one_counts_what_was_made(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_migrations_of_mariadb_at_once_one_counts_what_was_made() {
    of_two_migrations_at_once_one_counts_what_was_made(Kind::MariaDb).await;
}

on_each_database!(missing_tables_are_made_when_that_was_asked_for);
