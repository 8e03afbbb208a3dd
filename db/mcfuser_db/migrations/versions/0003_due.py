"""When a job may be tried again, and how often its server died under it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("due", sa.DateTime(timezone=True)))
    op.add_column(
        "jobs", sa.Column("interrupted", sa.Integer(), nullable=False, server_default="0")
    )


def downgrade() -> None:
    op.drop_column("jobs", "interrupted")
    op.drop_column("jobs", "due")
