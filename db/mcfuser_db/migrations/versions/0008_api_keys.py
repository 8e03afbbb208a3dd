"""API keys, and which of them posted a job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

VALID = sa.text("revoked IS NULL")


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(12), primary_key=True),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("requests", sa.Integer()),
        sa.Column("period", sa.Double()),
        sa.Column("queued", sa.Integer()),
        sa.Column("disk", sa.BigInteger()),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires", sa.DateTime(timezone=True)),
        sa.Column("revoked", sa.DateTime(timezone=True)),
        sa.Column("used", sa.DateTime(timezone=True)),
    )
    op.create_index(
        "api_keys_name",
        "api_keys",
        ["name"],
        unique=True,
        sqlite_where=VALID,
        postgresql_where=VALID,
    )
    op.add_column("jobs", sa.Column("api_key", sa.String(12)))
    op.add_column(
        "jobs", sa.Column("shared", sa.Boolean(), nullable=False, server_default=sa.false())
    )
    op.create_index("jobs_api_key", "jobs", ["api_key", "state"])


def downgrade() -> None:
    op.drop_index("jobs_api_key", "jobs")
    for column in ("shared", "api_key"):
        op.drop_column("jobs", column)
    op.drop_table("api_keys")
