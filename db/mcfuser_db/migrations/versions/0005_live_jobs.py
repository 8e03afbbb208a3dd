"""Progress, names, priorities and logs of jobs; idempotency keys; webhooks; removed results."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

KEPT = sa.text("finished IS NOT NULL AND removed IS NULL")
WAITING = sa.text("state = 'waiting'")


def upgrade() -> None:
    op.add_column("jobs", sa.Column("name", sa.String(200)))
    op.add_column("jobs", sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("jobs", sa.Column("version", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("jobs", sa.Column("progress", sa.JSON()))
    op.add_column("jobs", sa.Column("expected", sa.DateTime(timezone=True)))
    op.add_column("jobs", sa.Column("removed", sa.DateTime(timezone=True)))
    op.create_index("jobs_queue", "jobs", ["state", "priority", "created", "id"])
    op.create_index(
        "jobs_kept", "jobs", ["finished", "id"], sqlite_where=KEPT, postgresql_where=KEPT
    )
    op.create_index("jobs_model", "jobs", ["model"])
    op.create_index("jobs_module", "jobs", ["module"])
    op.create_table(
        "job_lines",
        sa.Column("job", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="CASCADE")),
        sa.Column("number", sa.Integer()),
        sa.Column("moment", sa.DateTime(timezone=True), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "number"),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("request", sa.String(64), nullable=False),
        sa.Column("job", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("idempotency_keys_created", "idempotency_keys", ["created"])
    op.create_index("idempotency_keys_job", "idempotency_keys", ["job"])
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Uuid(), primary_key=True),
        sa.Column("job", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due", sa.DateTime(timezone=True)),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    )
    op.create_index("webhooks_job", "webhooks", ["job"])
    op.create_index(
        "webhooks_waiting", "webhooks", ["due"], sqlite_where=WAITING, postgresql_where=WAITING
    )


def downgrade() -> None:
    for table in ("webhooks", "idempotency_keys", "job_lines"):
        op.drop_table(table)
    for index in ("jobs_module", "jobs_model", "jobs_kept", "jobs_queue"):
        op.drop_index(index, "jobs")
    for column in ("removed", "expected", "progress", "version", "priority", "name"):
        op.drop_column("jobs", column)
