"""Jobs and tuned kernels."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LIVE = sa.text("state IN ('queued', 'running', 'done')")


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("work", sa.String(64), nullable=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("model_bytes", sa.BigInteger(), nullable=False),
        sa.Column("device", sa.String(100), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("stage", sa.String(200), nullable=False),
        sa.Column("done", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("worker", sa.String(200)),
        sa.Column("claim", sa.Uuid()),
        sa.Column("lease", sa.DateTime(timezone=True)),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started", sa.DateTime(timezone=True)),
        sa.Column("finished", sa.DateTime(timezone=True)),
        sa.Column("module", sa.String(64)),
        sa.Column("module_bytes", sa.BigInteger()),
        sa.Column("report", sa.JSON()),
        sa.Column("problem", sa.JSON()),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'cancelled')", name="jobs_state"
        ),
    )
    op.create_index(
        "jobs_work_live", "jobs", ["work"], unique=True, sqlite_where=LIVE, postgresql_where=LIVE
    )
    op.create_index("jobs_state_created", "jobs", ["state", "created"])
    op.create_index("jobs_created", "jobs", ["created", "id"])
    op.create_index("jobs_claim", "jobs", ["claim"])
    op.create_table(
        "kernels",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("chain", sa.Text(), nullable=False),
        sa.Column("chain_key", sa.String(64), nullable=False),
        sa.Column("device", sa.String(100), nullable=False),
        sa.Column("expression", sa.Text(), nullable=False),
        sa.Column("measured", sa.Double()),
        sa.Column("predicted", sa.Double(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
        sa.Column("binary", sa.LargeBinary(), nullable=False),
    )
    op.create_index("kernels_chain_key", "kernels", ["chain_key"])
    op.create_index("kernels_device_created", "kernels", ["device", "created"])
    op.create_index("kernels_created", "kernels", ["created", "key"])


def downgrade() -> None:
    op.drop_table("kernels")
    op.drop_table("jobs")
