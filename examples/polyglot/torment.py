"""Tests consumer.py under faults: kills consumer.py before and after its effect, and sends foreign and unreadable messages.

    DATABASE_URL=postgresql://… NATS_URL=nats://… python torment.py

Each readable order is shipped once. Recreates the schema `torment` and the stream TORMENT.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import uuid4

sys.dont_write_bytecode = True

import nats
import psycopg
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from check import BROKER, CONSUMER, HERE, ROOT, SERVER, end_within, running

SCHEMA, STREAM, FILTER = "torment", "TORMENT", "torment.order.*.placed"
SHOP = f"{SERVER}{'&' if '?' in SERVER else '?'}options=-csearch_path%3D{SCHEMA}"
ENVIRONMENT = os.environ | {"DATABASE_URL": SHOP, "STREAM": STREAM, "FILTER": FILTER, "PYTHONUNBUFFERED": "1"}
# Seconds for the whole test, and until an unanswered delivery is repeated.
LIMIT, ACK_WAIT = 60, 0.5


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def consume_and_die(moment: str) -> None:
    """The consumer. Its process ends during the first delivery."""
    sys.path.insert(0, str(HERE / "python"))
    import consumer

    handle = consumer.handle

    def uncommitted(db: psycopg.Connection, *event) -> None:
        with db.transaction():  # contains the transaction of `handle`
            handle(db, *event)
            die()

    def unacknowledged(*event) -> None:
        handle(*event)
        die()

    consumer.handle = {"uncommitted": uncommitted, "unacknowledged": unacknowledged}[moment]
    asyncio.run(consumer.main())


def killed(moment: str) -> None:
    status = subprocess.run([sys.executable, __file__, moment], env=ENVIRONMENT, check=False).returncode
    assert status == -signal.SIGKILL, f"{moment}: status {status}"


def headers(order: int, name: str) -> dict[str, str]:
    return {
        "ce-specversion": "1.0",
        "ce-id": str(uuid4()),
        "ce-type": f"order.{name}",
        "ce-aggregatetype": "order",
        "ce-subject": str(order),
        "ce-eventversion": "1",
        "ce-time": "2026-01-01T00:00:00Z",
        "content-type": "application/json",
    }


def payload(order: int) -> bytes:
    return json.dumps({"order_id": order, "product": "chai", "units": 1}).encode()


async def make(stream) -> None:
    try:
        await stream.delete_stream(STREAM)
    except NotFoundError:
        pass
    await stream.add_stream(name=STREAM, subjects=["torment.>"])
    # consumer.py uses the existing consumer, with a shorter ack_wait.
    config = ConsumerConfig(
        durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT, max_deliver=-1, filter_subject=FILTER
    )
    await stream.add_consumer(STREAM, config=config)


async def settled(stream, unanswered: int, consumer: subprocess.Popen) -> None:
    """Waits until all messages are delivered, and all but this number of deliveries are acknowledged."""
    while True:
        assert consumer.poll() is None, "consumer.py has ended"
        state = await stream.consumer_info(STREAM, CONSUMER)
        if (state.num_pending, state.num_ack_pending) == (0, unanswered):
            return
        await asyncio.sleep(0.05)


def shipped(db: psycopg.Connection) -> list[int]:
    return [order for (order,) in db.execute("SELECT order_id FROM shipments ORDER BY order_id")]


async def torment(db: psycopg.Connection, log: Path) -> None:
    broker = await nats.connect(BROKER)
    stream = broker.jetstream()
    await make(stream)

    async def publish(order: int, event: dict[str, str] | None, data: bytes) -> None:
        await stream.publish(f"torment.order.{order}.placed", data, headers=event)

    await publish(1, headers(1, "placed"), payload(1))
    killed("uncommitted")
    assert shipped(db) == [], "of a transaction that did not commit"
    killed("unacknowledged")
    assert shipped(db) == [1], "the commit of the one before was not undone, or this one was lost"

    await publish(2, headers(2, "placed"), payload(2))
    await publish(3, headers(3, "cancelled"), payload(3))  # another event with a fixed subject
    await publish(4, headers(4, "placed"), b"{")
    await publish(5, None, payload(5))  # a foreign message, without headers
    await publish(6, headers(6, "placed"), payload(6))
    with log.open("w") as said, running([sys.executable, HERE / "python/consumer.py"], env=ENVIRONMENT, stdout=said) as consumer:
        await settled(stream, 2, consumer)
    assert shipped(db) == [1, 2, 6], shipped(db)
    handled = db.execute("SELECT count(*) FROM inbox_messages WHERE consumer = %s AND status = 1", [CONSUMER]).fetchone()[0]
    assert handled == 3, "a row without its effect"
    unread = log.read_text().splitlines()
    assert {line.split(":")[0] for line in unread} == {"torment.order.4.placed", "torment.order.5.placed"}, unread
    await broker.close()


def main() -> None:
    end_within(LIMIT)
    with psycopg.connect(SHOP, autocommit=True) as db, tempfile.TemporaryDirectory() as folder:
        db.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        db.execute(f"CREATE SCHEMA {SCHEMA}")
        db.execute((ROOT / "docs/sql/inbox.postgres.sql").read_text())
        db.execute("CREATE TABLE shipments (order_id int NOT NULL)")  # not unique: a second effect is visible
        asyncio.run(torment(db, Path(folder, "log")))
    print("killed before the commit and before the acknowledgement: shipped once; two unreadable messages: rejected, other messages continued")


if __name__ == "__main__":
    if sys.argv[1:]:
        consume_and_die(sys.argv[1])
    else:
        main()
