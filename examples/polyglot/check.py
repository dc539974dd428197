"""Runs the services of this folder against example 16, whose relay publishes their events and whose handler takes the units from the stock.

    DATABASE_URL=postgresql://… NATS_URL=nats://… python check.py [python] [node] [java] [go] [dotnet]

Without names it runs those stacks whose programs it finds, and says which it does not. Needs python/requirements.txt; the README says what
each stack needs besides. Each order is handled once by the handler in Rust, and shipped once by consumer.py, although all is delivered twice to it.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import nats
import psycopg
from nats.js.errors import NotFoundError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCHEMA, STREAM, FILTER = "example_16", "EXAMPLE_16", "example16.order.*.placed"
SERVER, BROKER = os.environ["DATABASE_URL"], os.environ["NATS_URL"]
SHOP = f"{SERVER}{'&' if '?' in SERVER else '?'}options=-csearch_path%3D{SCHEMA}"
# Example 16 saves one order of 2 units itself, and begins with 39.
STOCK, OWN, UNITS, ORDERS_EACH = 39, 2, 3, 2


def jdbc() -> str:
    parts = urlsplit(SERVER)
    login = f"user={parts.username or ''}&password={parts.password or ''}"
    return f"jdbc:postgresql://{parts.hostname}:{parts.port or 5432}{parts.path}?{login}&currentSchema={SCHEMA}"


def npgsql() -> str:
    parts = urlsplit(SERVER)
    return (
        f"Host={parts.hostname};Port={parts.port or 5432};Database={parts.path[1:]};Username={parts.username or ''};"
        f"Password={parts.password or ''};Search Path={SCHEMA}"
    )


def go_program(folder: str) -> Path:
    """With the modules of the proxy, or with those of Debian's golang-github-jackc-pgx-v4-dev."""
    program, source = Path(folder, "order_service"), Path(folder, "src/order_service")
    environment = dict(os.environ)
    debian = Path("/usr/share/gocode/src/github.com/jackc/pgx/v4")
    if debian.exists():
        environment |= {"GO111MODULE": "off", "GOPATH": f"{folder}:/usr/share/gocode"}
    shutil.copytree(HERE / "go", source)
    subprocess.run(["go", "build", "-o", program, "."], cwd=source, env=environment, check=True)
    return program


def commands(folder: str) -> dict[str, tuple[list, str]]:
    """The command of each stack that can run here, and its DATABASE_URL."""
    found = {"python": ([sys.executable, HERE / "python/order_service.py"], SHOP)}
    if shutil.which("node") and (HERE / "node/node_modules/pg").exists():
        found["node"] = (["node", HERE / "node/order_service.js"], SHOP)
    jar = os.environ.get("POSTGRESQL_JAR", "/usr/share/java/postgresql.jar")
    if shutil.which("java") and Path(jar).exists():
        found["java"] = (["java", "-cp", jar, HERE / "java/OrderService.java"], jdbc())
    if shutil.which("go"):
        found["go"] = ([go_program(folder)], SHOP)
    if shutil.which("dotnet"):
        found["dotnet"] = (["dotnet", "run", "--project", HERE / "dotnet", "--"], npgsql())
    return found


def consume() -> None:
    environment = os.environ | {"DATABASE_URL": SHOP, "STREAM": STREAM, "FILTER": FILTER, "IDLE_SECONDS": "2"}
    subprocess.run([sys.executable, HERE / "python/consumer.py"], env=environment, check=True)


async def on_the_broker(call: str, *arguments: str) -> None:
    broker = await nats.connect(BROKER)
    with contextlib.suppress(NotFoundError):
        await getattr(broker.jetstream(), call)(*arguments)
    await broker.close()


def start_example() -> subprocess.Popen:
    program = os.environ.get("EXAMPLE_16")
    command = [program] if program else ["cargo", "run", "-q", "-p", "examples", "--example", "16_postgres_jetstream"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = commands(folder)
        wanted = sys.argv[1:] or list(found)
        for stack in {"python", "node", "java", "go", "dotnet"} - set(found):
            print(f"{stack}: not run, its tools are missing")
        missing = set(wanted) - set(found)
        if missing:
            sys.exit(f"cannot run {', '.join(sorted(missing))}")
        # Of earlier runs, whose events are others.
        asyncio.run(on_the_broker("delete_stream", STREAM))
        example = start_example()
        try:
            line = example.stdout.readline()
            assert line == "saved order 1\n", line
            with psycopg.connect(SHOP, autocommit=True) as db:
                db.execute((ROOT / "docs/sql/outbox.writers.postgres.sql").read_text())
                db.execute("CREATE TABLE shipments (order_id int NOT NULL)")  # not unique: a second effect would show
                for stack in wanted:
                    command, url = found[stack]
                    for _ in range(ORDERS_EACH):
                        subprocess.run([*command, "chai", str(UNITS)], env=os.environ | {"DATABASE_URL": url}, check=True)
                    print(f"{stack}: {ORDERS_EACH} orders saved")
                orders = 1 + ORDERS_EACH * len(wanted)
                consume()
                # All is delivered again.
                asyncio.run(on_the_broker("delete_consumer", STREAM, "shipping-py"))
                consume()
                shipped = db.execute("SELECT array_agg(order_id ORDER BY order_id) FROM shipments").fetchone()[0]
                assert shipped == list(range(1, orders + 1)), shipped
        finally:
            subprocess.run(["kill", str(example.pid)], check=False)
        report = example.communicate(timeout=60)[0]
    left = STOCK - OWN - UNITS * (orders - 1)
    assert f"relay published {orders}, inbox handled {orders}\nchai in stock: {left}\n" in report, report
    print(f"{orders} orders published by the relay, handled once each in Rust and shipped once each in Python")


main()
