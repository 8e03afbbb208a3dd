"""How many jobs there are in each state, and how many kernels: counted as they change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

STATES = ("queued", "running", "done", "failed", "cancelled")
TALLIED = ("kernels", *(f"jobs.{state}" for state in STATES))

# In SQLite one transaction writes at a time: each count is one row.
SQLITE = (
    """CREATE TRIGGER kernels_entered AFTER INSERT ON kernels BEGIN
         UPDATE tallies SET number = number + 1 WHERE what = 'kernels';
       END""",
    """CREATE TRIGGER kernels_removed AFTER DELETE ON kernels BEGIN
         UPDATE tallies SET number = number - 1 WHERE what = 'kernels';
       END""",
    """CREATE TRIGGER jobs_entered AFTER INSERT ON jobs BEGIN
         UPDATE tallies SET number = number + 1 WHERE what = 'jobs.' || NEW.state;
       END""",
    """CREATE TRIGGER jobs_changed AFTER UPDATE OF state ON jobs WHEN OLD.state <> NEW.state BEGIN
         UPDATE tallies SET number = number - 1 WHERE what = 'jobs.' || OLD.state;
         UPDATE tallies SET number = number + 1 WHERE what = 'jobs.' || NEW.state;
       END""",
    """CREATE TRIGGER jobs_removed AFTER DELETE ON jobs BEGIN
         UPDATE tallies SET number = number - 1 WHERE what = 'jobs.' || OLD.state;
       END""",
)
# In PostgreSQL two transactions that changed the same row would wait for each other, perhaps for
# ever: each adds a row of its own. Every 256th puts together those that no other is putting
# together; nobody sees the sum change.
POSTGRESQL = (
    """CREATE FUNCTION mcfuser_tally(counted text, change bigint) RETURNS void AS $$
       DECLARE last bigint;
       BEGIN
         INSERT INTO tallies (what, number) VALUES (counted, change) RETURNING id INTO last;
         IF last & 255 = 0 THEN
           WITH folded AS (
             DELETE FROM tallies
             WHERE id IN (SELECT id FROM tallies FOR UPDATE SKIP LOCKED)
             RETURNING what, number
           )
           INSERT INTO tallies (what, number)
           SELECT what, sum(number) FROM folded GROUP BY what;
         END IF;
       END $$ LANGUAGE plpgsql""",
    """CREATE FUNCTION mcfuser_kernels_entered() RETURNS trigger AS $$
       BEGIN
         PERFORM mcfuser_tally('kernels', n) FROM (SELECT count(*) AS n FROM entered) AS c
         WHERE n > 0;
         RETURN NULL;
       END $$ LANGUAGE plpgsql""",
    """CREATE FUNCTION mcfuser_kernels_removed() RETURNS trigger AS $$
       BEGIN
         PERFORM mcfuser_tally('kernels', -n) FROM (SELECT count(*) AS n FROM removed) AS c
         WHERE n > 0;
         RETURN NULL;
       END $$ LANGUAGE plpgsql""",
    """CREATE FUNCTION mcfuser_jobs_entered() RETURNS trigger AS $$
       BEGIN
         PERFORM mcfuser_tally('jobs.' || state, n)
         FROM (SELECT state, count(*) AS n FROM entered GROUP BY state) AS c;
         RETURN NULL;
       END $$ LANGUAGE plpgsql""",
    """CREATE FUNCTION mcfuser_jobs_removed() RETURNS trigger AS $$
       BEGIN
         PERFORM mcfuser_tally('jobs.' || state, -n)
         FROM (SELECT state, count(*) AS n FROM removed GROUP BY state) AS c;
         RETURN NULL;
       END $$ LANGUAGE plpgsql""",
    """CREATE FUNCTION mcfuser_jobs_changed() RETURNS trigger AS $$
       BEGIN
         PERFORM mcfuser_tally('jobs.' || OLD.state, -1);
         PERFORM mcfuser_tally('jobs.' || NEW.state, 1);
         RETURN NULL;
       END $$ LANGUAGE plpgsql""",
    """CREATE TRIGGER jobs_changed AFTER UPDATE OF state ON jobs FOR EACH ROW
       WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION mcfuser_jobs_changed()""",
    *(
        f"""CREATE TRIGGER {table}_{what} AFTER {event} ON {table} REFERENCING {rows} AS {what}
            FOR EACH STATEMENT EXECUTE FUNCTION mcfuser_{table}_{what}()"""
        for table in ("kernels", "jobs")
        for what, event, rows in (
            ("entered", "INSERT", "NEW TABLE"), ("removed", "DELETE", "OLD TABLE"),
        )
    ),
)  # fmt: skip
TRIGGERS = {"jobs": ("entered", "changed", "removed"), "kernels": ("entered", "removed")}


def upgrade() -> None:
    op.create_table(
        "tallies",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("what", sa.String(20), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
    )
    for what in TALLIED:
        op.execute(f"INSERT INTO tallies (what, number) VALUES ('{what}', {_count(what)})")
    for statement in SQLITE if _is_sqlite() else POSTGRESQL:
        op.execute(statement)


def downgrade() -> None:
    for table, names in TRIGGERS.items():
        for name in names:
            on = "" if _is_sqlite() else f" ON {table}"
            op.execute(f"DROP TRIGGER {table}_{name}{on}")
            if not _is_sqlite():
                op.execute(f"DROP FUNCTION mcfuser_{table}_{name}()")
    if not _is_sqlite():
        op.execute("DROP FUNCTION mcfuser_tally(text, bigint)")
    op.drop_table("tallies")


def _count(what: str) -> str:
    table, _, state = what.partition(".")
    where = f" WHERE state = '{state}'" if state else ""
    return f"(SELECT count(*) FROM {table}{where})"


def _is_sqlite() -> bool:
    return bool(op.get_bind().dialect.name == "sqlite")
