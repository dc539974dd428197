"""Ships orders, each exactly once: a consumer by docs/wire-format.md, with nats-py and psycopg.

    DATABASE_URL=postgresql://… NATS_URL=nats://… STREAM=EVENTS FILTER='events.order.*.placed' python consumer.py

It runs until it is ended, and may be ended at any moment.
"""

import asyncio
import json
import os
from urllib.parse import unquote
from uuid import UUID

import nats
import psycopg
from nats.errors import TimeoutError
from nats.js.api import AckPolicy, ConsumerConfig

CONSUMER, EVENT = "shipping-py", "order.placed"
HANDLED = """
    INSERT INTO inbox_messages (consumer, id, status, attempts, processed_at, expires_at)
    VALUES (%s, %s, 1, 0, now(), now() + interval '15 days') ON CONFLICT DO NOTHING"""


def handle(db: psycopg.Connection, event_id: UUID, payload: bytes) -> None:
    """One transaction: the row that says the event was handled, and the effect. A copy waits at the row, finds it, and has no effect."""
    with db.transaction():
        if db.execute(HANDLED, (CONSUMER, event_id)).rowcount == 1:
            order = json.loads(payload)
            db.execute("INSERT INTO shipments (order_id) VALUES (%s)", (order["order_id"],))


async def main() -> None:
    broker = await nats.connect(os.environ["NATS_URL"])
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=30, max_deliver=-1)
    events = await broker.jetstream().pull_subscribe(os.environ["FILTER"], CONSUMER, os.environ["STREAM"], config=config)
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
        while True:
            try:
                (message,) = await events.fetch(1, timeout=30)
            except TimeoutError:
                continue
            try:
                headers = {name.lower(): unquote(value) for name, value in (message.headers or {}).items()}
                if headers["ce-type"] == EVENT:  # the subject does not tell: an event may have a fixed one
                    handle(db, UUID(headers["ce-id"]), message.data)
            except Exception as error:  # rolled back; delivered again in 5 s
                print(f"{message.subject}: {error!r}")
                await message.nak(delay=5)
            else:
                await message.ack()  # after the commit; if it is lost, a copy comes


if __name__ == "__main__":
    asyncio.run(main())
