"""Runs the services of this folder against example 16: its relay publishes their events, and its handler takes the units from the stock.

    DATABASE_URL=postgresql://… NATS_URL=nats://… python check.py [python] [node] [java] [go] [dotnet]

Without names, all installed stacks run, and missing stacks are listed. Needs python/requirements.txt; the README lists the needs of each
stack. The handler in Rust handles each order once, and consumer.py ships each order once, although every message is delivered twice.
Optional paths: EXAMPLE_16 (program of the example), NODE (Node), NODE_MODULES (a node_modules folder with pg).
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import nats
import psycopg
from nats.js.errors import NotFoundError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SCHEMA, STREAM, FILTER, CONSUMER = "example_16", "EXAMPLE_16", "example16.order.*.placed", "shipping-py"
SERVER, BROKER = os.environ["DATABASE_URL"].replace("postgres://", "postgresql://", 1), os.environ["NATS_URL"]
SHOP = f"{SERVER}{'&' if '?' in SERVER else '?'}options=-csearch_path%3D{SCHEMA}"
# Example 16 saves one order of 2 units itself, and begins with 39.
STOCK, OWN, UNITS, ORDERS_EACH = 39, 2, 3, 2
HANDLED = "SELECT count(*) FROM inbox_messages WHERE consumer = 'example16-inventory' AND status = 1"
# Seconds to compile the services and to start, and again to run. Cargo takes longer if it has to build the example.
LIMIT = 240


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


def python(_: Path) -> tuple[list, str]:
    return [sys.executable, HERE / "python/order_service.py"], SHOP


def node(folder: Path) -> tuple[list, str] | None:
    modules = Path(os.environ.get("NODE_MODULES", HERE / "node/node_modules")).resolve()
    program = shutil.which(os.environ.get("NODE", "node"))
    if not program or not (modules / "pg").exists():
        return None
    # A program finds modules only in its own folder.
    for name in ["order_service.js", "package.json"]:
        shutil.copy(HERE / "node" / name, folder)
    (folder / "node_modules").symlink_to(modules)
    return [program, folder / "order_service.js"], SHOP


def java(_: Path) -> tuple[list, str] | None:
    jar = os.environ.get("POSTGRESQL_JAR", "/usr/share/java/postgresql.jar")
    if not shutil.which("java") or not Path(jar).exists():
        return None
    return ["java", "-cp", jar, HERE / "java/OrderService.java"], jdbc()


def go(folder: Path) -> tuple[list, str] | None:
    """With the modules of the proxy or of Debian's golang-github-jackc-pgx-v4-dev."""
    if not shutil.which("go"):
        return None
    program, source = folder / "order_service", folder / "src/order_service"
    environment = dict(os.environ)
    debian = Path("/usr/share/gocode/src/github.com/jackc/pgx/v4")
    if debian.exists():
        environment |= {"GO111MODULE": "off", "GOPATH": f"{folder}:/usr/share/gocode"}
    shutil.copytree(HERE / "go", source)
    subprocess.run(["go", "build", "-o", program, "."], cwd=source, env=environment, check=True)
    return [program], SHOP


def dotnet(folder: Path) -> tuple[list, str] | None:
    if not shutil.which("dotnet"):
        return None
    shutil.copytree(HERE / "dotnet", folder / "dotnet")
    return ["dotnet", "run", "--project", folder / "dotnet", "--"], npgsql()


STACKS = {"python": python, "node": node, "java": java, "go": go, "dotnet": dotnet}


def find(named: list[str], folder: Path) -> dict[str, tuple[list, str]]:
    """The command of each stack that can run here, and its DATABASE_URL."""
    found = {}
    for stack in named or STACKS:
        own = folder / stack
        own.mkdir()
        if command := STACKS[stack](own):
            found[stack] = command
        elif named:
            sys.exit(f"cannot run {stack}, its tools are missing")
        else:
            print(f"{stack}: not run, its tools are missing")
    return found


@contextlib.contextmanager
def running(command: list, **options):
    """A process that ends with the block."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def log_of_failure(path: Path):
    """The log file of a process, printed if the block fails."""
    with path.open("w") as log:
        try:
            yield log
        except BaseException:
            print(path.read_text(), file=sys.stderr)
            raise


def save_orders(found: dict[str, tuple[list, str]]) -> None:
    """All concurrently: each order is a separate aggregate, so no order waits for another."""
    with contextlib.ExitStack() as processes:
        started = []
        for stack, (command, url) in found.items():
            for _ in range(ORDERS_EACH):
                service = running([*command, "chai", str(UNITS)], env=os.environ | {"DATABASE_URL": url})
                started.append((stack, processes.enter_context(service)))
        for stack, process in started:
            if status := process.wait():
                sys.exit(f"{stack}: an order was not saved, status {status}")


async def forget(call: str, *names: str) -> None:
    broker = await nats.connect(BROKER)
    with contextlib.suppress(NotFoundError):
        await getattr(broker.jetstream(), call)(*names)
    await broker.close()


async def acknowledged(orders: int, consumer: subprocess.Popen) -> None:
    """Waits until this number of events is on the stream, and the consumer has acknowledged all of them."""
    broker = await nats.connect(BROKER)
    stream = broker.jetstream()
    while True:
        assert consumer.poll() is None, "consumer.py has ended"
        with contextlib.suppress(NotFoundError):
            published = (await stream.stream_info(STREAM)).state
            done = (await stream.consumer_info(STREAM, CONSUMER)).ack_floor
            if published.messages == orders and done.stream_seq == published.last_seq:
                break
        await asyncio.sleep(0.05)
    await broker.close()


def ship(orders: int) -> None:
    environment = os.environ | {"DATABASE_URL": SHOP, "STREAM": STREAM, "FILTER": FILTER}
    with running([sys.executable, HERE / "python/consumer.py"], env=environment) as consumer:
        asyncio.run(acknowledged(orders, consumer))


def check(found: dict[str, tuple[list, str]], db: psycopg.Connection) -> int:
    """Saves and ships the orders. Returns their number."""
    db.execute((ROOT / "docs/sql/outbox.writers.postgres.sql").read_text())
    db.execute("CREATE TABLE shipments (order_id int NOT NULL)")  # not unique: a second effect is visible
    save_orders(found)
    orders = 1 + ORDERS_EACH * len(found)
    ship(orders)
    # All messages are delivered again.
    asyncio.run(forget("delete_consumer", STREAM, CONSUMER))
    ship(orders)
    shipped = db.execute("SELECT array_agg(order_id ORDER BY order_id) FROM shipments").fetchone()[0]
    assert shipped == list(range(1, orders + 1)), shipped
    while db.execute(HANDLED).fetchone()[0] < orders:
        time.sleep(0.05)
    return orders


def end_within(seconds: int) -> None:
    """A time limit from now on. Pending waits then fail, and started processes end."""

    def late(*_) -> None:
        raise TimeoutError(f"not done within {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)


def main() -> None:
    program = os.environ.get("EXAMPLE_16")
    end_within(LIMIT if program else 10 * LIMIT)
    command = [program] if program else ["cargo", "run", "-q", "-p", "examples", "--example", "16_postgres_jetstream"]
    with tempfile.TemporaryDirectory() as folder:
        found = find(sys.argv[1:], Path(folder))
        # Left by earlier runs, with other events.
        asyncio.run(forget("delete_stream", STREAM))
        with log_of_failure(Path(folder, "log")) as log, running(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True) as example:
            line = example.stdout.readline()
            assert line == "saved order 1\n", f"example 16 said {line!r}"
            end_within(LIMIT)
            with psycopg.connect(SHOP, autocommit=True) as db:
                orders = check(found, db)
            example.terminate()
            report = example.communicate()[0]
            left = STOCK - OWN - UNITS * (orders - 1)
            assert f"relay published {orders}, inbox handled {orders}\nchai in stock: {left}\n" in report, report
    print(f"{', '.join(found)}: {orders} orders published by the relay, handled once each in Rust and shipped once each in Python")


if __name__ == "__main__":
    main()
