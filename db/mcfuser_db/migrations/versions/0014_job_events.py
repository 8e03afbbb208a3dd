"""The events of jobs, for those who follow them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_events",
        sa.Column("job", sa.Uuid(), sa.ForeignKey("jobs.id", ondelete="CASCADE")),
        sa.Column("version", sa.Integer()),
        sa.Column("moment", sa.DateTime(timezone=True), nullable=False),
        sa.Column("total", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("job", "version"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("job_events")
