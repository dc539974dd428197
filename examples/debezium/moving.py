"""Moves a Debezium-style outbox to ours while services write, and back, with the SQL of the folder moving."""

import json
import time
from collections import defaultdict
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import psycopg

from engine import DATABASE, LIMIT, ROLE, ROOT, Engine, connect, drop_slot

FOLDER = ROOT / "examples/debezium/moving"
OLD = """
    CREATE TABLE outboxevent (
        id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb NOT NULL
    );
    CREATE PUBLICATION all_tables FOR ALL TABLES;
    CREATE TABLE orders (id text PRIMARY KEY, events int NOT NULL);
    INSERT INTO orders SELECT n, 0 FROM generate_series(1, 5) AS n;
    CREATE ROLE outbox_check_service;
    GRANT INSERT ON outboxevent TO outbox_check_service;
    GRANT SELECT, UPDATE ON orders TO outbox_check_service"""
PREFIX = "debezium.transforms.outbox."
# The router without the properties of this project.
PROPERTIES = {
    "debezium.source.table.include.list": "public.outboxevent",
    "debezium.source.publication.name": "outboxevent_debezium",
    "debezium.transforms": "only,outbox",
    "debezium.predicates.ours.pattern": "shop[.]public[.]outboxevent|outbox[.]heartbeat[.]shop",
    f"{PREFIX}table.field.event.key": "",
    f"{PREFIX}route.by.field": "",
    f"{PREFIX}table.fields.additional.placement": "type:header:eventType",
    "debezium.format.value": "simplestring",
}
OURS = "SELECT id, aggregate_id, event_type, payload, sequence FROM outbox_messages WHERE aggregate_type = 'order' ORDER BY row_id"


class Services:
    """Services that continue to write to the old table. Each event has its number in the order."""

    def __init__(self):
        self.stopped, self.errors = Event(), []
        self.threads = [Thread(target=self.write, args=(number,)) for number in range(4)]
        for thread in self.threads:
            thread.start()

    def write(self, number: int) -> None:
        try:
            with connect(dbname=DATABASE) as db:
                db.execute("SET ROLE outbox_check_service")
                turn = 0
                while not self.stopped.wait(0.002):
                    turn += 1
                    with db.transaction():
                        order = str((turn + number) % 5 + 1)
                        count = db.execute("UPDATE orders SET events = events + 1 WHERE id = %s RETURNING events", (order,)).fetchone()[0]
                        inserted = db.execute(
                            "INSERT INTO outboxevent VALUES (%s, 'Order', %s, 'OrderPlaced', %s)", (uuid4(), order, json.dumps({"n": count}))
                        )
                        # Services and their libraries count the rows.
                        assert inserted.rowcount == 1
        except BaseException as error:
            self.errors.append(error)

    def stop(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


def run(db: psycopg.Connection, name: str) -> None:
    db.execute((FOLDER / name).read_text())


def wait_for_events(db: psycopg.Connection, more: int) -> None:
    events = "SELECT sum(events) FROM orders"
    wanted = db.execute(events).fetchone()[0] + more
    while db.execute(events).fetchone()[0] < wanted:
        db.execute("SELECT pg_sleep(0.01)")


def own_publication(db: psycopg.Connection, folder: Path, slot: str) -> None:
    """From a publication of all tables, which cannot be changed, to one of the old table, with the same slot."""
    with Engine(db, folder, slot, **(PROPERTIES | {"debezium.source.publication.name": "all_tables"})) as engine:
        try:
            db.execute("ALTER PUBLICATION all_tables DROP TABLE outboxevent")
            raise AssertionError("a publication of all tables was changed")
        except psycopg.errors.ObjectNotInPrerequisiteState:
            pass
        lines = (FOLDER / "publication.sql").read_text().splitlines()
        create, lsn = [line for line in lines if not line.startswith("--")]
        db.execute(create)
        made = db.execute(lsn).fetchone()[0]
        db.execute("INSERT INTO outboxevent VALUES (%s, 'Order', 'first', 'OrderPlaced', '{}')", (uuid4(),))
        engine.until("first")
        confirmed = "SELECT confirmed_flush_lsn > %s FROM pg_replication_slots WHERE slot_name = %s"
        deadline = time.monotonic() + LIMIT
        while not db.execute(confirmed, (made, slot)).fetchone()[0]:
            assert time.monotonic() < deadline, "the slot does not advance"
            time.sleep(0.2)


def moving(db: psycopg.Connection, folder: Path) -> None:
    """Each event is sent exactly once, in aggregate order."""
    db.execute(OLD)
    slot = "outbox_debezium_check_old"
    own_publication(db, folder, slot)
    run(db, "forward.sql")
    services = None
    try:
        with Engine(db, folder, slot, **PROPERTIES) as engine:
            services = Services()
            wait_for_events(db, 200)
            run(db, "switch.sql")
            wait_for_events(db, 200)
            before = engine.until("switch")
        # Debezium has ended. Its slot retains the events for its restart.
        run(db, "back.sql")
        wait_for_events(db, 200)
        services.stop()
        db.execute("INSERT INTO outboxevent VALUES (%s, 'Order', 'end', 'OrderPlaced', '{}')", (uuid4(),))
        with Engine(db, folder, slot, **PROPERTIES) as engine:
            after = engine.until("end")
    finally:
        if services:
            services.stopped.set()
    balance(db, before, db.execute(OURS).fetchall(), after)
    drop_slot(db, slot)
    db.execute(f"DROP OWNED BY outbox_check_service; DROP ROLE outbox_check_service; GRANT CONNECT ON DATABASE {DATABASE} TO {ROLE}")


def balance(db: psycopg.Connection, before: list[dict], ours: list[tuple], after: list[dict]) -> None:
    seen, ids = defaultdict(list), []
    for message in before:
        seen[message["key"]].append(json.loads(message["payload"])["n"])
    for _, order, event_type, payload, sequence in ours:
        assert event_type == "order.placed"
        seen[order].append(json.loads(bytes(payload))["n"])
    for message in after:
        seen[message["key"]].append(json.loads(message["payload"])["n"])
    ids = [message["headers"]["id"] for message in before] + [str(row[0]) for row in ours] + [message["headers"]["id"] for message in after]
    events = dict(db.execute("SELECT id, events FROM orders").fetchall())
    assert before and ours and after, (len(before), len(ours), len(after))
    assert seen == {order: list(range(1, count + 1)) for order, count in events.items()}, seen
    rows = {str(id) for (id,) in db.execute("SELECT id FROM outboxevent WHERE aggregateid NOT IN ('first', 'switch', 'end')")}
    assert len(ids) == len(set(ids)) and set(ids) == rows
    for order in events:
        sequences = [row[4] for row in ours if row[1] == order]
        assert sequences == list(range(1, len(sequences) + 1)), (order, sequences)
