"""The database and the engine of check.py: tables made from docs/sql, and Router.java as a process whose messages are read."""

import base64
import contextlib
import json
import os
import queue
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import make_conninfo

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SERVER = os.environ["DATABASE_URL"].replace("postgres://", "postgresql://", 1)
DATABASE, ROLE = "outbox_debezium_check", "outbox_debezium"
JAVA = ["java", "-XX:TieredStopAtLevel=1", "-Dorg.apache.logging.log4j.level=WARN", "-cp", f"{os.environ['DEBEZIUM_JARS']}/*", HERE / "Router.java"]
# Seconds for a start of the engine, and for expected messages. A start takes 5 s on an idle machine.
LIMIT = 120


def connect(**options) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(SERVER, **options), autocommit=True)


def make_database() -> psycopg.Connection:
    # A slot of an earlier run blocks dropping its database, and is dropped from within that database only.
    with contextlib.suppress(psycopg.OperationalError), connect(dbname=DATABASE) as old:
        old.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()")
    with connect() as server:
        server.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
        server.execute(f"DROP ROLE IF EXISTS {ROLE}, outbox_check_service")
        server.execute(f"CREATE DATABASE {DATABASE}")
    db = connect(dbname=DATABASE)
    for name in ["docs/sql/outbox.postgres.sql", "docs/sql/outbox.writers.postgres.sql", "examples/debezium/publication.sql"]:
        db.execute((ROOT / name).read_text())
    return db


def record(db: psycopg.Connection, aggregate_type="order", aggregate_id="42", event_name="placed", payload="{}", **others) -> UUID:
    """Calls outbox_record with arguments by name."""
    named = {"aggregate_type": aggregate_type, "aggregate_id": aggregate_id, "event_name": event_name, "payload": payload, **others}
    casts = {"payload": "::json", "headers": "::json", "available_at": "::timestamptz", "id": "::uuid"}
    arguments = ", ".join(f"{name} => %({name})s{casts.get(name, '')}" for name in named)
    return db.execute(f"SELECT outbox_record({arguments})", named).fetchone()[0]


class Engine:
    """Router.java with application.properties, whose place is that of the check. `changed` are properties with other values; without a value they are removed."""

    def __init__(self, db: psycopg.Connection, folder: Path, slot: str = DATABASE, **changed: str):
        self.db, self.slot, self.lines, self.log = db, slot, queue.Queue(), folder / f"{slot}.log"
        parts = urlsplit(SERVER)
        properties = {
            "debezium.source.database.hostname": parts.hostname or "localhost",
            "debezium.source.database.port": parts.port or 5432,
            "debezium.source.database.dbname": DATABASE,
            "debezium.source.offset.storage.file.filename": folder / f"{slot}.offsets",
            "debezium.source.slot.name": slot,
            **changed,
        }
        arguments = [f"{name}={value}" for name, value in properties.items()]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*JAVA, HERE / "application.properties", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def __enter__(self):
        """Waits until the engine reads its slot, or has ended."""
        streaming = "SELECT 1 FROM pg_stat_replication JOIN pg_replication_slots ON pid = active_pid WHERE slot_name = %s AND state = 'streaming'"
        deadline = time.monotonic() + LIMIT
        while self.process.poll() is None and not self.db.execute(streaming, (self.slot,)).fetchone():
            if time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"the engine did not start within {LIMIT} s\n{self.log_end()}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(LIMIT)
        finally:
            self.process.kill()

    def log_end(self) -> str:
        return self.log.read_text()[-3000:]

    def next(self) -> dict | None:
        try:
            return self.lines.get(timeout=LIMIT)
        except queue.Empty:
            raise AssertionError(f"nothing came within {LIMIT} s\n{self.log_end()}") from None

    def take(self) -> list[dict]:
        """All messages committed so far: the messages before an event that this function records."""
        marker = str(uuid4())
        record(self.db, "marker", marker)
        return self.until(marker)

    def until(self, marker: str) -> list[dict]:
        found = []
        while (message := self.next()) is None or message.get("key") != marker:
            assert message and "failed" not in message, f"the engine failed: {message}\n{self.log_end()}"
            if message["topic"] != "outbox.heartbeat.shop":
                found.append(message | {"headers": dict(message["headers"]), "payload": base64.b64decode(message["payload"] or "")})
        return found

    def failure(self) -> str:
        """The errors of an engine that fails when it meets an event."""
        deadline = time.monotonic() + LIMIT
        while (message := self.next()) and time.monotonic() < deadline:
            if "failed" in message:
                return "\n".join(message["failed"])
        raise AssertionError(f"the engine did not fail\n{self.log_end()}")


def drop_slot(db: psycopg.Connection, slot: str) -> None:
    while db.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active", (slot,)).fetchone():
        time.sleep(0.05)
    db.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (slot,))


@contextlib.contextmanager
def temporary(db: psycopg.Connection, folder: Path, **changed: str):
    """An engine with a slot of its own, which is dropped."""
    slot = f"check_{uuid4().hex[:8]}"
    with Engine(db, folder, slot, **changed) as engine:
        yield engine
    drop_slot(db, slot)


