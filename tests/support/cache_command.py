"""`mcfuser cache` in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from mcfuser.cli.cache import app


def cache(*words: str, status: int = 0) -> Result:
    """Runs the command; raises what it raises, and AssertionError where it ends with another
    status."""
    ran = CliRunner().invoke(app, list(words))
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    assert ran.exit_code == status, ran.output
    return ran
