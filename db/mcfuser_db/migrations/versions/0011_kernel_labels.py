"""What kernels are searched and ordered by."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_INDEXES = {
    "kernels_by_created": ["created", "key", "label"],
    "kernels_by_chain": ["label", "key"],
    "kernels_by_device": ["device", "label", "key"],
    "kernels_by_dtype": ["dtype", "label", "key"],
    "kernels_by_time": ["seconds", "key", "label"],
}
# the type of the chain's first tensor; nothing where the document is damaged
_DTYPE = {
    "sqlite": """
        CASE WHEN json_valid(document) THEN (SELECT substr(json_extract(value, '$.dtype'), 1, 100)
        FROM json_each(document, '$.chain.tensors') LIMIT 1) END""",
    "postgresql": """
        CASE WHEN json_typeof(document #> '{chain,tensors}') = 'object' THEN
        (SELECT substr(value ->> 'dtype', 1, 100)
        FROM json_each(document #> '{chain,tensors}') LIMIT 1) END""",
}


def upgrade() -> None:
    op.add_column("kernels", sa.Column("dtype", sa.String(100), nullable=False, server_default=""))
    op.add_column("kernels", sa.Column("seconds", sa.Double(), nullable=False, server_default="0"))
    op.add_column("kernels", sa.Column("label", sa.String(400), nullable=False, server_default=""))
    dtype = f"coalesce({_DTYPE[op.get_bind().dialect.name]}, '')"
    # as mcfuser_db.kernel_search.label writes it, but for letters that are not ASCII
    label = f"lower(substr(chain, 1, 190) || {_char(31)} || device || {_char(31)} || {dtype})"
    # one statement: each writes every row, and its place in every index, anew
    op.execute(
        f"UPDATE kernels SET dtype = {dtype}, seconds = coalesce(measured, predicted), "
        f"label = {label}"
    )
    for name, columns in _INDEXES.items():
        op.create_index(name, "kernels", columns)


def _char(number: int) -> str:
    return f"{'char' if op.get_bind().dialect.name == 'sqlite' else 'chr'}({number})"


def downgrade() -> None:
    for name in _INDEXES:
        op.drop_index(name, "kernels")
    for column in ("label", "seconds", "dtype"):
        op.drop_column("kernels", column)
