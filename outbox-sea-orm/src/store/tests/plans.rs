//! Plans of statements on one set of test tables.

use std::num::NonZeroU32;

use outbox_core::{MessageStatus, PageFrom, Place, PublishedSearch, Selection};

use super::*;
use crate::store::fetch::sql::{self as fetch, Scope};
use crate::store::pause::sql::{self as pause, held_until};
use crate::store::{admin, backlog, block, message, settle};

const PUBLISHED: i64 = 20_000;
const PENDING: i64 = 200;
const BLOCKED: i64 = 10_000;
const IN_FLIGHT: i64 = 2_000;

each_layout!(scan, super::scan_of_pending_messages);
each_layout!(count, super::count_of_the_backlog);
each_layout!(timeline, super::messages_of_one_aggregate);
each_layout!(page, super::page_of_messages);
each_layout!(pause_end, super::end_of_a_pause);

async fn scan_of_pending_messages(layout: Layout) {
    let Some(world) = World::open(layout).await else {
        return;
    };
    let dialect = &world.dialect;
    world.analyze().await;
    for (count, status) in [
        (PUBLISHED, 1),
        (BLOCKED, 3),
        (PENDING, 0),
        (PUBLISHED, 1),
        (PENDING + IN_FLIGHT, 0),
    ] {
        world.insert(count, status, "n % 64").await;
    }
    world.block("order", BLOCKED, "7", dialect.now()).await;
    let delayed = format!(
        "UPDATE {} SET available_at = {} WHERE status = 0 AND sequence < 20",
        dialect.messages,
        dialect.now_plus("3600000000")
    );
    world.run(&delayed).await;
    let last = 2 * PUBLISHED + BLOCKED + 2 * PENDING + IN_FLIGHT;
    let (partitions, keys) = (Vec::from_iter(0..64), keys("order", 64));
    let in_flight = in_flight(last - IN_FLIGHT..last);
    let scope = Scope {
        partitions: &partitions,
        in_flight: &in_flight,
        limit: 50,
    };
    let most = if world.is_postgres() { 120 } else { 1_000 };
    let mut cases = vec![case("scan", fetch::scan(dialect, scope), most)];
    if world.is_postgres() {
        let rows = vec![super::RowKey { row_id: 1, id: None }];
        cases.extend([
            case(
                "waiting",
                fetch::waiting_of(dialect, &keys, &in_flight, 16),
                64 * 4,
            ),
            case(
                "publish",
                settle::sql::publish_claimed(dialect, &[], &rows, true),
                100,
            ),
            case("lock", block::sql::lock(dialect, &keys), 64 * 4),
            case("release", block::sql::release(dialect, &keys), 64 * 6),
            case("end", block::sql::end(dialect, &keys), 64 * 10),
            case(
                "resume",
                block::sql::resume(dialect, &Aggregate::new("order", "1")),
                10,
            ),
        ]);
    } else {
        cases.push(case(
            "waiting",
            fetch::waiting_row_ids_of(dialect, &keys, 16),
            1_000,
        ));
    }
    world.check(&cases).await;
}

async fn count_of_the_backlog(layout: Layout) {
    const LIMIT: i64 = 500;
    let Some(world) = World::open(layout).await else {
        return;
    };
    world.analyze().await;
    for status in [0, 3, 2] {
        world.insert(PUBLISHED, status, "n % 64").await;
    }
    world
        .block("order", PUBLISHED, "7", &world.dialect.now_plus("3600000000"))
        .await;
    let count = backlog::sql::backlog(&world.dialect, LIMIT as u64);
    let row = &world.rows(count.clone()).await[0];
    let counts =
        ["pending", "waiting", "dead", "backing_off"].map(|name| row.try_get::<i64>("", name).unwrap());
    assert_eq!(counts, [LIMIT; 4]);
    world.check(&[case("backlog", count, 14 * LIMIT)]).await;
}

async fn messages_of_one_aggregate(layout: Layout) {
    const BACKLOG: i64 = 50_000;
    const LOOKED_AT: u32 = 2_000;
    let Some(world) = World::open(layout).await else {
        return;
    };
    let (dialect, order) = (&world.dialect, Aggregate::new("order", "4711"));
    world.insert(PUBLISHED, 1, "n % 64").await;
    world.analyze().await;
    world.insert(BACKLOG, 0, "n % 64").await;
    let partition = format!(
        "UPDATE {} SET partition_no = {} WHERE aggregate_id = '4711'",
        dialect.messages,
        order.partition()
    );
    world.run(&partition).await;
    let limit = NonZeroU32::new(26).unwrap();
    let list = |status| {
        let selection = Selection::all().aggregate(&order).status(status);
        message::sql::list(dialect, &selection, None, limit)
    };
    let looked_at_max = NonZeroU32::new(LOOKED_AT).unwrap();
    let search = PublishedSearch {
        aggregate: Some(order.clone()),
        from: None,
        until: None,
        looked_at_max,
        limit: looked_at_max,
    };
    let mut cases = vec![
        case("pending", list(MessageStatus::Pending), BACKLOG / 32 + 60),
        case("waiting", list(MessageStatus::Waiting), 60),
        case("dead", list(MessageStatus::Dead), 60),
        case(
            "end",
            message::sql::search_end(dialect, &search),
            i64::from(LOOKED_AT) + 10,
        ),
    ];
    if layout != Layout::Sqlite {
        cases.push(case(
            "search",
            message::sql::search_published(dialect, &search),
            3 * i64::from(LOOKED_AT),
        ));
    }
    world.check(&cases).await;
}

async fn page_of_messages(layout: Layout) {
    let Some(world) = World::open(layout).await else {
        return;
    };
    world.analyze().await;
    for status in [1, 0, 3, 2, 1] {
        world.insert(PUBLISHED, status, "n % 64").await;
    }
    let dialect = &world.dialect;
    let halt = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, partition_no, halted_by) \
         SELECT 'halted', aggregate_id, partition_no, row_id FROM {} WHERE status = 2",
        dialect.blocks, dialect.messages
    );
    world.run(&halt).await;
    let id = MessageId::from(Uuid::from_u128(u128::MAX / 2));
    let place = PageFrom::Before(Place { row_id: 20_000, id });
    let limit = NonZeroU32::new(50).unwrap();
    let page = |selection: Selection, from| message::sql::page(&world.dialect, &selection, None, from, limit);
    let mut cases = vec![
        case("after", page(Selection::all(), PageFrom::After(id)), 500),
        case(
            "published",
            page(
                Selection::all().status(MessageStatus::Published),
                PageFrom::Newest,
            ),
            500,
        ),
    ];
    for halting in [false, true] {
        let dead = Selection::dead_letters();
        cases.push(case(
            "dead",
            admin::sql::select_dead(dialect, &dead, halting, 50),
            500,
        ));
    }
    for selection in [
        Selection::all(),
        Selection::all().status(MessageStatus::Pending),
        Selection::all().status(MessageStatus::Waiting),
        Selection::all().status(MessageStatus::Dead),
    ] {
        cases.push(case("newest", page(selection.clone(), PageFrom::Newest), 500));
        cases.push(case("before", page(selection, place), 500));
    }
    world.check(&cases).await;
}

async fn end_of_a_pause(layout: Layout) {
    const FOREIGN: i64 = 100_000;
    const OWN: i64 = 50;
    const STEP: i64 = 64;
    let Some(world) = World::open(layout).await else {
        return;
    };
    let dialect = &world.dialect;
    world.insert(PUBLISHED, 1, "n % 64").await;
    world.analyze().await;
    for (aggregate_type, count) in [("foreign", FOREIGN), ("own", OWN)] {
        let held = dialect.time(&held_until(aggregate_type.as_bytes()).to_string());
        world.block(aggregate_type, count, "n % 64", &held).await;
        world.insert(count, 3, "n % 64").await;
        let hold = format!(
            "UPDATE {} SET sequence = NULL, aggregate_type = '{aggregate_type}', available_at = {held} \
             WHERE status = 3 AND aggregate_type = 'order'",
            dialect.messages
        );
        world.run(&hold).await;
    }
    let searches = [
        pause::held_blocks(dialect, b"own", 512),
        pause::held_rows(dialect, b"own", 512),
    ];
    for search in &searches {
        assert_eq!(world.rows(search.clone()).await.len() as i64, OWN);
    }
    let rows = format!(
        "SELECT row_id FROM {} WHERE aggregate_type = 'foreign' ORDER BY row_id DESC LIMIT {STEP}",
        dialect.messages
    );
    let rows = world.rows(Statement::from_string(dialect.backend, rows)).await;
    let rows: Vec<i64> = rows
        .iter()
        .map(|row| row.try_get("", "row_id").unwrap())
        .collect();
    let [blocks, unsequenced] = searches;
    let keys = keys("foreign", STEP);
    let mut cases = vec![
        case("blocks", blocks, 10 * OWN),
        case("rows", unsequenced, 10 * OWN),
        case("release blocks", block::sql::release(dialect, &keys), 10 * STEP),
        case(
            "release rows",
            pause::release_rows(dialect, b"foreign", &rows),
            10 * STEP,
        ),
    ];
    if layout != Layout::Sqlite {
        cases.push(case("lock", block::sql::lock(dialect, &keys), 10 * STEP));
    }
    world.check(&cases).await;
}

/// A scan would lock heads of other aggregates.
#[tokio::test]
async fn heads_on_mariadb() {
    let Some(world) = World::open(Layout::MariaDb).await else {
        return;
    };
    let heads = format!(
        "INSERT INTO {} (aggregate_type, aggregate_id, last_sequence, recorded_at) SELECT 'order', n, 1, UTC_TIMESTAMP(6) FROM {}",
        world.dialect.aggregates,
        world.numbers(BLOCKED)
    );
    world.run(&heads).await;
    let cases = [2, 500].map(|count| {
        let heads: Vec<_> = (1..=count)
            .map(|n: i64| (Aggregate::new("order", n.to_string()), 1))
            .collect();
        case(
            "heads",
            crate::write::insert::sql::read_heads(&world.dialect, &heads),
            2 * count,
        )
    });
    world.check(&cases).await;
}
