"""The bytes of each API key's files, counted as jobs change; the devices of used kernels; another
status for the problem of jobs that were given up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

GAVE_UP = "urn:mcfuser:problem:gave-up"
UNREMOVED = sa.text("removed IS NULL")
VACUUMED = ("kernels", "kernel_uses", "candidates", "jobs")
"""Tables whose indexes PostgreSQL reads without the rows, as long as it was vacuumed lately."""

# A job with a key has its model and its module, until its results are removed. `key_files` has each
# file of a key once, and how many of the key's jobs have it; its own triggers add up the bytes.
_HAS = "{0}.api_key IS NOT NULL AND {0}.removed IS NULL"
_ADD = """
    INSERT INTO key_files (api_key, file, bytes, jobs)
    SELECT NEW.api_key, NEW.{file}, coalesce(NEW.{file}_bytes, 0), 1
    WHERE NEW.{file} IS NOT NULL AND {has}
    ON CONFLICT (api_key, file) DO UPDATE SET jobs = key_files.jobs + 1;"""
_TAKE = """
    UPDATE key_files SET jobs = jobs - 1
    WHERE api_key = OLD.api_key AND file = OLD.{file} AND {has};"""
_CLEAN = """
    DELETE FROM key_files
    WHERE api_key = OLD.api_key AND file IN (OLD.model, OLD.module) AND jobs <= 0;"""
ADD = "".join(_ADD.format(file=f, has=_HAS.format("NEW")) for f in ("model", "module"))
TAKE = "".join(_TAKE.format(file=f, has=_HAS.format("OLD")) for f in ("model", "module")) + _CLEAN

SQLITE = (
    """CREATE TRIGGER key_files_entered AFTER INSERT ON key_files BEGIN
         INSERT INTO tallies (what, number) SELECT 'disk.' || NEW.api_key, 0
         WHERE NOT EXISTS (SELECT 1 FROM tallies WHERE what = 'disk.' || NEW.api_key);
         UPDATE tallies SET number = number + NEW.bytes WHERE what = 'disk.' || NEW.api_key;
       END""",
    """CREATE TRIGGER key_files_removed AFTER DELETE ON key_files BEGIN
         UPDATE tallies SET number = number - OLD.bytes WHERE what = 'disk.' || OLD.api_key;
       END""",
    f"CREATE TRIGGER jobs_files_entered AFTER INSERT ON jobs BEGIN {ADD} END",
    f"""CREATE TRIGGER jobs_files_changed AFTER UPDATE OF model, module, removed, api_key ON jobs
        BEGIN {ADD} {TAKE} END""",
    f"CREATE TRIGGER jobs_files_removed AFTER DELETE ON jobs BEGIN {TAKE} END",
)
_FUNCTION = """CREATE FUNCTION mcfuser_{name}() RETURNS trigger AS $$
               BEGIN {body} RETURN NULL; END $$ LANGUAGE plpgsql"""
POSTGRESQL = tuple(
    statement
    for name, event, body in (
        ("key_files_entered", "INSERT ON key_files",
         "PERFORM mcfuser_tally('disk.' || NEW.api_key, NEW.bytes);"),
        ("key_files_removed", "DELETE ON key_files",
         "PERFORM mcfuser_tally('disk.' || OLD.api_key, -OLD.bytes);"),
        ("jobs_files_entered", "INSERT ON jobs", ADD),
        ("jobs_files_changed", "UPDATE OF model, module, removed, api_key ON jobs", ADD + TAKE),
        ("jobs_files_removed", "DELETE ON jobs", TAKE),
    )
    for statement in (
        _FUNCTION.format(name=name, body=body),
        f"CREATE TRIGGER {name} AFTER {event} FOR EACH ROW EXECUTE FUNCTION mcfuser_{name}()",
    )
)  # fmt: skip
TRIGGERS = {
    "jobs": ("files_entered", "files_changed", "files_removed"),
    "key_files": ("entered", "removed"),
}


def upgrade() -> None:
    _used()
    _files()
    _problems(422)
    if not _is_sqlite():
        for table in VACUUMED:
            _tell(table, "SET (autovacuum_vacuum_scale_factor = 0.02,"
                  " autovacuum_vacuum_insert_scale_factor = 0.02)")  # fmt: skip


def downgrade() -> None:
    if not _is_sqlite():
        for table in VACUUMED:
            _tell(table, "RESET (autovacuum_vacuum_scale_factor,"
                  " autovacuum_vacuum_insert_scale_factor)")  # fmt: skip
    _problems(500)
    for table, names in TRIGGERS.items():
        for name in names:
            on = "" if _is_sqlite() else f" ON {table}"
            op.execute(f"DROP TRIGGER {table}_{name}{on}")
            if not _is_sqlite():
                op.execute(f"DROP FUNCTION mcfuser_{table}_{name}()")
    op.drop_table("key_files")
    op.execute("DELETE FROM tallies WHERE substr(what, 1, 5) = 'disk.'")
    for file in ("model", "module"):
        columns = ["api_key", file, f"{file}_bytes"]
        op.create_index(f"jobs_{file}s_of_key", "jobs", columns,
                        sqlite_where=UNREMOVED, postgresql_where=UNREMOVED)  # fmt: skip
    op.drop_index("kernel_uses_place", "kernel_uses")
    op.drop_column("kernel_uses", "device")
    op.create_index("kernel_uses_place", "kernel_uses", ["place", "created", "kernel"])


def _used() -> None:
    op.add_column("kernel_uses", sa.Column("device", sa.String(100)))
    for index in ("kernel_uses_place", "kernel_uses_kernel"):  # made anew faster than kept
        op.drop_index(index, "kernel_uses")
    op.execute(
        "UPDATE kernel_uses SET device = kernels.device "
        "FROM kernels WHERE kernels.key = kernel_uses.kernel"
    )
    op.create_index("kernel_uses_place", "kernel_uses", ["place", "created", "kernel", "device"])
    op.create_index("kernel_uses_kernel", "kernel_uses", ["kernel"])


def _files() -> None:
    op.create_table(
        "key_files",
        sa.Column("api_key", sa.String(12), primary_key=True),
        sa.Column("file", sa.String(64), primary_key=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sqlite_with_rowid=False,
    )
    kept = " UNION ALL ".join(
        f"SELECT api_key, {file} AS file, coalesce({file}_bytes, 0) AS bytes FROM jobs "
        f"WHERE {_HAS.format('jobs')} AND {file} IS NOT NULL"
        for file in ("model", "module")
    )
    op.execute(
        "INSERT INTO key_files (api_key, file, bytes, jobs) "
        f"SELECT api_key, file, max(bytes), count(*) FROM ({kept}) AS kept GROUP BY api_key, file"
    )
    op.execute(
        "INSERT INTO tallies (what, number) "
        "SELECT 'disk.' || api_key, sum(bytes) FROM key_files GROUP BY api_key"
    )
    for statement in SQLITE if _is_sqlite() else POSTGRESQL:
        op.execute(statement)
    for file in ("model", "module"):
        op.drop_index(f"jobs_{file}s_of_key", "jobs")


def _problems(status: int) -> None:
    """Gives the jobs that were given up a problem with this status."""
    changed, kind = "json_set(problem, '$.status', :status)", "json_extract(problem, '$.type')"
    readable = "json_valid(problem)"
    if not _is_sqlite():
        changed = "CAST(jsonb_set(CAST(problem AS jsonb), '{status}', to_jsonb(:status)) AS json)"
        kind, readable = "problem ->> 'type'", "json_typeof(problem) = 'object'"
    query = sa.text(
        f"UPDATE jobs SET problem = {changed} WHERE state = 'failed' AND "
        f"CASE WHEN {readable} THEN {kind} END = :kind"
    )
    op.execute(query.bindparams(sa.bindparam("status", status, sa.Integer), kind=GAVE_UP))


def _tell(table: str, words: str) -> None:
    op.execute(f"ALTER TABLE {table} {words}")


def _is_sqlite() -> bool:
    return bool(op.get_bind().dialect.name == "sqlite")
