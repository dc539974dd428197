"""An order service with SQLAlchemy: an order and its event are saved in one transaction.

    DATABASE_URL=postgresql://… python order_service.py PRODUCT UNITS
"""

import json
import os
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

RECORD = text("SELECT outbox_record('order', :id, 'placed', CAST(:payload AS json))")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]
    units: Mapped[int]


def place(session: Session, product: str, units: int) -> Order:
    """Adds to the caller's transaction: the event exists if and only if the order does."""
    order = Order(product=product, units=units)
    session.add(order)
    session.flush()  # the database gives the id
    payload = json.dumps({"order_id": order.id, "product": order.product, "units": order.units})
    session.execute(RECORD, {"id": str(order.id), "payload": payload})
    return order


def main(product: str, units: int) -> None:
    url = os.environ["DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1)
    with Session(create_engine(url)) as session, session.begin():
        place(session, product, units)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
