"""Indexes for lists of any length; which batches of candidates are of searches under way."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

REMOVED = sa.text("removed IS NOT NULL")
UNREMOVED = sa.text("removed IS NULL")
OPEN_SQLITE, OPEN_POSTGRESQL = sa.text("open = 1"), sa.text("open")


def upgrade() -> None:
    _jobs()
    _replace("kernels_chain_key", "kernels", ["chain_key", "created", "key"])
    _replace("kernels_device_created", "kernels", ["device", "created", "key"])
    op.create_index(
        "kernels_chain", "kernels", [sa.text("substr(chain, 1, 100)"), "created", "key", "device"]
    )
    op.add_column("kernel_uses", sa.Column("created", sa.DateTime(timezone=True)))
    op.drop_index("kernel_uses_place", "kernel_uses")
    op.execute(
        "UPDATE kernel_uses SET created = kernels.created "
        "FROM kernels WHERE kernels.key = kernel_uses.kernel"
    )
    op.create_index("kernel_uses_place", "kernel_uses", ["place", "created", "kernel"])
    op.create_index("kernel_uses_kernel", "kernel_uses", ["kernel"])
    op.add_column(
        "candidates", sa.Column("open", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    open_ = "1" if op.get_bind().dialect.name == "sqlite" else "true"
    op.execute(
        f"UPDATE candidates SET open = {open_} "
        "WHERE NOT EXISTS (SELECT 1 FROM kernels WHERE kernels.key = candidates.key)"
    )
    op.create_index(
        "candidates_open", "candidates", ["key", "device", "created", "count"],
        sqlite_where=OPEN_SQLITE, postgresql_where=OPEN_POSTGRESQL,
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index("candidates_open", "candidates")
    op.drop_column("candidates", "open")
    for index in ("kernel_uses_kernel", "kernel_uses_place"):
        op.drop_index(index, "kernel_uses")
    op.drop_column("kernel_uses", "created")
    op.create_index("kernel_uses_place", "kernel_uses", ["place"])
    op.drop_index("kernels_chain", "kernels")
    _replace("kernels_device_created", "kernels", ["device", "created"])
    _replace("kernels_chain_key", "kernels", ["chain_key"])
    for index in ("jobs_removed", "jobs_models_of_key", "jobs_modules_of_key"):
        op.drop_index(index, "jobs")
    _replace("jobs_model", "jobs", ["model"])
    _replace("jobs_queue", "jobs", ["state", "priority", "created", "id"])
    _replace("jobs_state_created", "jobs", ["state", "created"])


def _jobs() -> None:
    _replace("jobs_state_created", "jobs", ["state", "created", "id"])
    _replace("jobs_queue", "jobs", ["state", "priority", "created", "id", "due"])
    _replace("jobs_model", "jobs", ["model"], UNREMOVED)
    _create("jobs_removed", "jobs", ["removed", "id"], REMOVED)
    for file in ("model", "module"):
        columns = ["api_key", file, f"{file}_bytes"]
        _create(f"jobs_{file}s_of_key", "jobs", columns, UNREMOVED)


def _replace(name: str, table: str, columns: list[str], where: sa.TextClause | None = None) -> None:
    op.drop_index(name, table)
    _create(name, table, columns, where)


def _create(name: str, table: str, columns: list[str], where: sa.TextClause | None) -> None:
    op.create_index(name, table, columns, sqlite_where=where, postgresql_where=where)
