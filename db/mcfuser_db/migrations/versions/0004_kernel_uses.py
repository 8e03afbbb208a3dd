"""What a kernel was made with, and which chains of compiled models use it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("kernels", sa.Column("made", sa.JSON()))
    op.create_table(
        "kernel_uses",
        sa.Column("chain_key", sa.String(64), primary_key=True),
        sa.Column("place", sa.String(64), primary_key=True),
        sa.Column("kernel", sa.String(64), primary_key=True),
    )
    op.create_index("kernel_uses_place", "kernel_uses", ["place"])


def downgrade() -> None:
    op.drop_table("kernel_uses")
    op.drop_column("kernels", "made")
