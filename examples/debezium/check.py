"""Runs application.properties with Debezium's engine over the tables of docs/sql, and compares every message with its row.

    DATABASE_URL=postgresql://… DEBEZIUM_JARS=… python check.py [part …]

The server needs wal_level=logical, and the user must be a superuser: the database outbox_debezium_check, and the roles outbox_debezium and
outbox_check_service, are made anew.
DEBEZIUM_JARS is the folder with the engine's jars. Needs requirements.txt and Java 17. `cargo xtask debezium` brings all of this along.

Parts: messages, restarts, changes, refused, wrong, publications, moving; without a name all. The parts refused and wrong show wrong settings.
"""

import base64
import json
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from threading import Thread
from urllib.parse import unquote
from uuid import UUID, uuid4

import psycopg

import moving
from engine import DATABASE, LIMIT, ROLE, ROOT, Engine, connect, drop_slot, make_database, record, temporary

OUTBOX = "debezium.transforms.outbox."
PLACEMENT = f"{OUTBOX}table.fields.additional.placement"
ROWS = """
    SELECT id, aggregate_type, aggregate_id, sequence, event_type, event_version, content_type, payload, headers::text, created_at
    FROM outbox_messages WHERE aggregate_type <> 'marker' ORDER BY row_id"""
# Rows that outbox_record does not write: payloads other than JSON, and copies of a replay.
ROW = """
    INSERT INTO outbox_messages (id, partition_no, aggregate_type, aggregate_id, event_type, event_version, content_type, payload, headers, event_id)
    VALUES (%s, 0, 'order', '42', 'order.placed', 1, 'application/cbor', %s, '{}', %s)"""


def expected(row: tuple) -> dict:
    """The message that the guide describes for a row."""
    id, aggregate_type, aggregate_id, sequence, event_type, version, content_type, payload, headers, created_at = row
    names = {
        "id": str(id), "Nats-Msg-Id": str(id), "ce-id": str(id), "ce-type": event_type, "ce-aggregatetype": aggregate_type,
        "ce-subject": aggregate_id, "ce-eventversion": str(version), "ce-sequence": sequence and str(sequence), "ce-time": created_at,
        "content-type": content_type, "headers": headers, "ce-specversion": "1%2E0", "ce-source": "shop",
    }  # fmt: skip
    kept = {name: value for name, value in names.items() if value is not None}
    return {"topic": f"outbox.event.{aggregate_type}", "key": aggregate_id, "headers": kept, "payload": bytes(payload)}


def compared(message: dict) -> dict:
    """With a time that compares whatever its digits."""
    assert message["headers"]["ce-time"].endswith("Z"), message
    return message | {"headers": message["headers"] | {"ce-time": datetime.fromisoformat(message["headers"]["ce-time"])}}


def compare(messages: list[dict], rows: list[tuple]) -> None:
    found, wanted = [compared(message) for message in messages], [expected(row) for row in rows]
    for one, other in zip(found, wanted):
        assert one == other, f"{one}\n is not\n{other}"
    assert len(found) == len(wanted), f"{len(found)} messages of {len(wanted)} rows"


def read_by_the_wire_format(message: dict) -> dict:
    """As a consumer in any language reads it (docs/wire-format.md)."""
    headers = {name.lower(): unquote(value) for name, value in message["headers"].items()}
    assert headers["ce-specversion"] == "1.0"
    UUID(headers["ce-id"])
    assert int(headers["ce-eventversion"]) > 0 and int(headers.get("ce-sequence", 1)) > 0
    assert datetime.fromisoformat(headers["ce-time"]).utcoffset().total_seconds() == 0
    assert all(headers[name] for name in ["ce-type", "ce-aggregatetype", "ce-subject", "content-type"])
    return headers


def messages(db: psycopg.Connection, folder: Path) -> None:
    """Rows of every kind arrive unchanged and in aggregate order. The replication right suffices."""
    with Engine(db, folder) as engine:
        record(db, payload='{"order_id":  "42", "text": "ü \\u00fc"}', headers='{"Tenant": "a", "traceparent": "00-1-2-01"}')
        record(db, event_name="paid", event_version=4294967295, dedup_key="paid-42")
        record(db, "stock-item", "a b/ü%41", headers='{"tenant": "Müller"}', sequenced=False)
        record(db, payload=json_of(900_000), subject="a.fixed.subject")
        with db.transaction() as undone:
            record(db, event_name="undone")
            raise psycopg.Rollback(undone)
        for payload in [b"\xff\x00\xfe", b""]:
            db.execute(ROW, (uuid4(), payload, None))
        db.execute(ROW, (uuid4(), b"\xa0", uuid4()))
        found = engine.take()
        compare(found, db.execute(ROWS).fetchall())
        headers = [read_by_the_wire_format(message) for message in found]
        # The wire format encodes this, Debezium does not.
        assert headers[2]["ce-subject"] == "a b/üA" and headers[2]["headers"] == '{ "tenant" : "Müller" }', headers[2]
        writers = [Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        sequences = {}
        for message in engine.take():
            sequences.setdefault(message["key"], []).append(int(message["headers"]["ce-sequence"]))
        assert sequences == {f"busy-{n}": list(range(1, 41)) for n in range(5)}, sequences


def json_of(size: int) -> str:
    return f'"{"x" * (size - 2)}"'


def write(number: int) -> None:
    with connect(dbname=DATABASE) as db:
        for event in range(50):
            record(db, aggregate_id=f"busy-{(event + number) % 5}")


def restarts(db: psycopg.Connection, folder: Path) -> None:
    """A stopped or killed engine loses no message. Messages after the stored offset come again, with the same id."""
    sent, found = [], []
    for start, kill in enumerate([False, True, True, False]):
        if start:  # messages recorded before the slot are not sent
            sent.append(str(record(db, event_name="restarted")))
        with Engine(db, folder) as engine:
            sent.append(str(record(db, event_name="restarted")))
            found += [message["headers"]["ce-id"] for message in engine.take() if message["headers"]["ce-type"] == "order.restarted"]
            if kill:
                engine.process.kill()
    assert list(dict.fromkeys(found)) == sent, (found, sent)
    # Without the stored offset, the slot has the position.
    (folder / f"{DATABASE}.offsets").unlink()
    last = str(record(db, event_name="restarted"))
    with Engine(db, folder) as engine:
        assert last in [message["headers"].get("ce-id") for message in engine.take()]
    # WAL of other tables is released while no event is recorded.
    with Engine(db, folder) as engine:
        db.execute("CREATE TABLE noise AS SELECT repeat(md5(n::text), 30) FROM generate_series(1, 10000) AS n")
        end = db.execute("SELECT pg_current_wal_lsn()").fetchone()[0]
        deadline = time.monotonic() + LIMIT
        confirmed = "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots WHERE slot_name = %s"
        while not db.execute(confirmed, (end, DATABASE)).fetchone()[0]:
            assert time.monotonic() < deadline, "the slot does not advance"
            time.sleep(0.5)
    drop_slot(db, DATABASE)


def changes(db: psycopg.Connection, folder: Path) -> None:
    """Updates and deletes do not show, and a row that its own transaction deletes is sent."""
    settle = "UPDATE outbox_messages SET status = 1, published_at = now()"
    with temporary(db, folder) as engine:
        record(db)
        db.execute(settle)
        db.execute("DELETE FROM outbox_messages")
        with db.transaction():
            record(db, aggregate_id="gone")
            db.execute("DELETE FROM outbox_messages")
        assert [message["key"] for message in engine.take()] == ["42", "gone"]
    db.execute("CREATE PUBLICATION everything FOR TABLE outbox_messages")
    with temporary(db, folder, **{"debezium.source.publication.name": "everything"}) as engine:
        record(db)
        db.execute(settle)
        db.execute("DELETE FROM outbox_messages")
        assert [message["key"] for message in engine.take()] == ["42"]
        # Each costs a line of the log.
        assert "Unexpected update message received" in engine.log.read_text()
    fatal = {"debezium.source.publication.name": "everything", f"{OUTBOX}table.op.invalid.behavior": "fatal"}
    with temporary(db, folder, **fatal) as engine:
        record(db)
        db.execute(settle)
        says(engine.failure(), "Unexpected update message received")


def says(failure: str, text: str) -> None:
    assert text in failure, f"another error than {text!r}:\n{failure}"


# Changes to the file that stop the engine, and the error of the engine.
DELEGATE = "debezium.format.value.delegate.converter.type"
REFUSED = [
    ({f"{OUTBOX}table.field.event.key": ""}, "aggregateid is not a valid field name"),
    ({f"{OUTBOX}route.by.field": ""}, "aggregatetype is not a valid field name"),
    ({f"{OUTBOX}route.by.field": "subject"}, 'Cannot invoke "java.lang.CharSequence.length()" because "this.text" is null'),
    ({f"{OUTBOX}table.field.event.timestamp": "created_at"}, "Field 'created_at' is not of type INT64"),
    ({PLACEMENT: "partition_no:partition"}, "Field 'partition_no' is not of type INT32"),
    ({PLACEMENT: "event_type:envelope", f"{OUTBOX}table.field.event.schema.version": "event_version"}, "Field 'event_version' is not of type INT32"),
    ({DELEGATE: "", f"{DELEGATE}.schemas.enable": ""}, "requires a delegate.converter.type to be configured"),
]


def refused(db: psycopg.Connection, folder: Path) -> None:
    """Mistakes that stop the engine at the first event or heartbeat."""
    for changed, text in REFUSED:
        with temporary(db, folder, **{"debezium.source.heartbeat.interval.ms": "500", **changed}) as engine:
            record(db)
            record(db)
            says(engine.failure(), text)


def wrong(db: psycopg.Connection, folder: Path) -> None:
    """Mistakes that the engine accepts without an error."""

    def first(**changed: str) -> dict:
        with temporary(db, folder, **changed) as engine:
            record(db, payload='{"a": 1}', headers='{"tenant": "a"}')
            return engine.take()[0]

    # Delayed messages go out at once.
    with temporary(db, folder) as engine:
        delayed = record(db, available_at="9999-01-01")
        assert [message["headers"]["id"] for message in engine.take()] == [str(delayed)]
    # A replayed copy looks like another event.
    with temporary(db, folder) as engine:
        copy, event = uuid4(), uuid4()
        db.execute(ROW, (copy, b"{}", event))
        assert engine.take()[0]["headers"]["ce-id"] == str(copy)
    # ... and the column event_id is empty for all others, which then have no header `id`.
    assert "id" not in first(**{f"{OUTBOX}table.field.event.id": "event_id"})["headers"]
    # Without the formats of the file.
    encoded = base64.b64encode(b'{"a": 1}').decode()
    message = first(**{"debezium.format.value": "json", DELEGATE: "", f"{DELEGATE}.schemas.enable": ""})
    assert json.loads(message["payload"])["payload"] == encoded, message
    message = first(**{PLACEMENT: "event_type:envelope:type"})
    assert json.loads(message["payload"]) == {"payload": encoded, "type": "order.placed"}, message
    message = first(**{"debezium.format.header.class": ""})
    assert json.loads(message["headers"]["ce-type"])["payload"] == "order.placed", message
    message = first(**{"debezium.format.header.class": "", "debezium.format.header.schemas.enable": "false"})
    assert message["headers"]["ce-type"] == '"order.placed"', message
    message = first(**{"debezium.transforms.specversion.value.literal": "1.0"})
    assert message["headers"]["ce-specversion"] == "1", message
    assert "__debezium.context.taskId" in first(**{"debezium.source.extended.headers.enabled": ""})["headers"]
    # The payload is bytes for the router too.
    with temporary(db, folder, **{f"{OUTBOX}table.expand.json.payload": "true"}) as engine:
        record(db, payload='{"a": 1}')
        assert engine.take()[0]["payload"] == b'{"a": 1}'
        assert "Expand JSON payload is turned on but payload is not a string" in engine.log.read_text()
    # The subjects of the consumers' filters.
    lines = (ROOT / "examples/debezium/subjects.properties").read_text().splitlines()
    subjects = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert len(subjects) == 3 and first(**subjects)["topic"] == "events.order.shard-0.placed", subjects
    # Any program may write a logical message; without the filter it is published.
    with temporary(db, folder, **{"debezium.transforms": "outbox"}) as engine:
        db.execute("SELECT pg_logical_emit_message(false, 'another program', '')")
        record(db)
        assert [message["topic"] for message in engine.take()] == ["shop.message", "outbox.event.order"]


def publications(db: psycopg.Connection, folder: Path) -> None:
    """Dependencies on the publication, the slot and the layout of the tables."""
    snippets = {name: (ROOT / f"examples/debezium/{name}.sql").read_text() for name in ["due", "release", "purge"]}
    # With a filter, delayed messages wait for a job that inserts them again.
    db.execute(snippets["due"])
    with temporary(db, folder, **{"debezium.source.publication.name": "outbox_debezium_due"}) as engine:
        delayed = record(db, available_at="2001-01-01")
        record(db)
        first = engine.take()
        db.execute(snippets["release"])
        second = engine.take()
        assert (len(first), [message["headers"]["id"] for message in second]) == (1, [str(delayed)]), (first, second)
        assert second[0]["headers"]["ce-sequence"] == str(int(first[0]["headers"]["ce-sequence"]) - 1)
    # The rows stay unsettled.
    db.execute("UPDATE outbox_messages SET created_at = now() - interval '8 days'")
    record(db)
    db.execute(snippets["purge"])
    assert db.execute("SELECT count(*) FROM outbox_messages").fetchone()[0] == 1
    # Messages recorded before the slot need a snapshot, and one more right.
    snapshot = {"debezium.source.snapshot.mode": "initial"}
    with temporary(db, folder) as engine:
        assert engine.take() == []
    # By default, both errors below are retried forever.
    once = {"debezium.source.errors.max.retries": "1"}
    with temporary(db, folder, **snapshot, **once) as engine:
        says(engine.failure(), "permission denied for table outbox_messages")
    db.execute(f"GRANT SELECT ON outbox_messages TO {ROLE}")
    with temporary(db, folder, **snapshot) as engine:
        assert len(engine.take()) > 0
    # A slot that is older than its publication.
    slot = f"check_{uuid4().hex[:8]}"
    db.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    record(db)
    db.execute("CREATE PUBLICATION late FOR TABLE outbox_messages WITH (publish = 'insert')")
    with Engine(db, folder, slot, **{"debezium.source.publication.name": "late"}, **once) as engine:
        says(engine.failure(), 'publication "late" does not exist')
    drop_slot(db, slot)


def main() -> None:
    parts = {part.__name__: part for part in [messages, restarts, changes, refused, wrong, publications, moving.moving]}
    with tempfile.TemporaryDirectory() as folder:
        db = make_database()
        for name in sys.argv[1:] or parts:
            began = time.monotonic()
            db.execute("TRUNCATE outbox_messages, outbox_aggregates")
            parts[name](db, Path(folder))
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
