"""The table of equivalent mutants names lines that are there."""

from __future__ import annotations

import pytest

pytest.importorskip("cosmic_ray", reason="mutants need the dev extra's cosmic-ray")

from tests.mutation.equivalents import Equivalent, table
from tests.support.paths import ROOT


@pytest.mark.parametrize("known", table(), ids=lambda e: f"{e.module}: {e.line}")
def test_a_line_whose_mutants_mean_the_same_is_still_there(known: Equivalent) -> None:
    text = (ROOT / "mcfuser" / f"{known.module}.py").read_text()
    found = [line.strip() for line in text.splitlines()].count(known.line)
    assert found == 1, f"{found} such lines in {known.module}: mend tests/mutation/equivalents.toml"
    assert known.becomes and known.line not in known.becomes and known.why
