"""The candidates that searches have measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "candidates",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("chain_key", sa.String(64), nullable=False),
        sa.Column("device", sa.String(100), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("document", sa.JSON(), nullable=False),
    )
    op.create_index("candidates_key", "candidates", ["key", "device", "created", "count"])
    op.create_index("candidates_chain_key", "candidates", ["chain_key"])


def downgrade() -> None:
    op.drop_table("candidates")
