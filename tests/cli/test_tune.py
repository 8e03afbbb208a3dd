"""`mcfuser tune`: what it says of a search, and what it keeps."""

from __future__ import annotations

import json
from pathlib import Path

from mcfuser_db import Storage
from tests.support.command import mcfuser


def test_tune_says_that_a_search_was_cut_short_and_retune_makes_it_again(tmp_path: Path) -> None:
    """The last of them prints JSON."""
    kept = []
    for more in ((), (), ("--retune", "--json")):
        ran = mcfuser("tune", "gemm:1,32,32,16,16", "--trials", "2", *more, data=tmp_path)
        if more:
            found = json.loads(ran.stdout)
            assert found["measured"] > 0 and found["trials"] <= 2
        else:
            assert "the search was cut short by trials=2" in ran.stdout, ran.stderr
        store = Storage(f"sqlite:///{tmp_path / 'mcfuser.db'}")
        kept.append([(k.key, k.created) for k in store.kernels()])
        store.close()
    assert kept[0] == kept[1] != kept[2]
    assert [key for key, _ in kept[0]] == [key for key, _ in kept[2]]
