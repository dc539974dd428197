//! A fetch for some partitions reads no rows or blocks of other partitions.

use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::store::fetch::partition;
use crate::store::fetch::sql::Scope;
use crate::store::session::{self, Isolation};

const HALF: std::ops::Range<i64> = 0..32;
const OWN: i64 = 50;
const FOREIGN: i64 = 100_000;

each_layout!(half, super::fetch_of_half);

async fn fetch_of_half(layout: Layout) {
    let Some(world) = World::open(layout).await else {
        return;
    };
    let dialect = &world.dialect;
    world.insert(20_000, 1, "n % 64").await;
    world.analyze().await;
    for status in [0, 3] {
        world.insert(FOREIGN, status, "32 + n % 32").await;
        world.insert(OWN, status, "n % 32").await;
    }
    let due = format!(
        "UPDATE {} SET sequence = NULL, available_at = created_at WHERE status = 3",
        dialect.messages
    );
    world.run(&due).await;
    world
        .block("foreign", FOREIGN / 10, "32 + n % 32", dialect.now())
        .await;
    world.block("own", OWN, "n % 32", dialect.now()).await;
    let (partitions, rows) = (Vec::from_iter(HALF), in_flight([1, 2, 3]));
    let scope = Scope {
        partitions: &partitions,
        in_flight: if world.is_postgres() { &rows } else { &[] },
        limit: 1_000,
    };
    let bounds: Vec<(i64, i64)> = HALF.map(|partition| (partition, i64::MAX)).collect();
    let blocks = partition::sql::ended_blocks(dialect, scope, 100, &[]);
    let statements = match world.is_postgres() {
        true => vec![
            ("scan", partition::sql::scan(dialect, scope)),
            ("unsequenced", partition::sql::unsequenced(dialect, scope, &[])),
            ("blocks", blocks),
        ],
        false => vec![
            ("scan", partition::sql::first_pending(dialect, &partitions, 100)),
            (
                "unsequenced",
                partition::sql::first_unsequenced(dialect, &partitions, 100, &[]),
            ),
            ("below", partition::sql::pending_below(dialect, &bounds, 1_000)),
            ("blocks", blocks),
        ],
    };
    let mut cases = Vec::new();
    for (name, statement) in statements {
        assert_eq!(
            world.rows(statement.clone()).await.len() as i64,
            OWN,
            "{layout:?}, {name}"
        );
        cases.push(case(
            name,
            statement,
            if world.is_postgres() { 3 * OWN } else { 500 },
        ));
    }
    world.check(&cases).await;
}

async fn many_rows_in_flight(layout: Layout) {
    const ROWS: i64 = 1_000;
    const CROWDED: i64 = 12;
    let Some(world) = World::open(layout).await else {
        return;
    };
    world.insert(80_000, 0, "n % 32").await;
    let mut row_ids = Vec::new();
    for partition in 0..CROWDED {
        let first = world
            .rows(partition::sql::first_pending(&world.dialect, &[partition], 186))
            .await;
        row_ids.extend(first.iter().map(|row| row.try_get::<i64>("", "row_id").unwrap()));
    }
    let (in_flight, asked) = (in_flight(row_ids), Arc::new(AtomicI64::new(0)));
    let (count, sum) = (in_flight.len() as i64, asked.clone());
    let isolation = Isolation::default();
    let fetched = session::call(&world.db, &isolation, world.dialect.clone(), async move |db| {
        let partitions = Vec::from_iter(HALF);
        let scope = Scope {
            partitions: &partitions,
            in_flight: &in_flight,
            limit: ROWS,
        };
        let look_up = |partitions: &[i64], limit: i64| {
            sum.fetch_add(limit * partitions.len() as i64, Ordering::Relaxed);
            partition::sql::first_pending(&db.dialect, partitions, limit)
        };
        partition::first(&db, scope, look_up).await
    });
    let (row_ids, more) = fetched.await.unwrap();
    assert_eq!((row_ids.len() as i64, more), (ROWS / HALF.end * HALF.end, true));
    let asked = asked.load(Ordering::Relaxed);
    assert!(
        asked < 2 * ROWS + 8 * count,
        "{asked} entries asked for beside {count} in flight"
    );
}

#[tokio::test]
async fn many_in_flight_on_mariadb() {
    many_rows_in_flight(Layout::MariaDb).await;
}

#[tokio::test]
async fn many_in_flight_on_sqlite() {
    many_rows_in_flight(Layout::Sqlite).await;
}
