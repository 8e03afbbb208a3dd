"""Run by Alembic, on the connection that `mcfuser_db.engine.upgrade` hands in, or on the database
that `-x url=` names."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from mcfuser_db.engine import connect
from mcfuser_db.models import Base


def migrate(connection: Connection) -> None:
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=True,
        transactional_ddl=True,
    )  # fmt: skip
    with context.begin_transaction():
        context.run_migrations()


if (given := context.config.attributes.get("connection")) is not None:
    migrate(given)
else:
    with connect(context.get_x_argument(as_dictionary=True)["url"]).begin() as opened:
        migrate(opened)
