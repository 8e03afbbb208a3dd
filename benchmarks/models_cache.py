"""Tuned kernels in a folder, a JSON file each: what `benchmarks/models.py` keeps between runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mcfuser.chain import Chain
from mcfuser.tune.key import CacheKey
from mcfuser.tune.related import Relative
from mcfuser.tune.tried import Tried
from mcfuser.tune.tuned import Tuned, Use


@dataclass
class FolderCache:
    """A cache (`mcfuser.tune.tuned.Cache`) of files `<chain's key>/<kernel's key>.json`.

    A file that is damaged, or of another format, is as if it were not there.
    """

    folder: Path
    kept: dict[str, Tuned] = field(default_factory=dict)

    def get(self, key: str) -> Tuned | None:
        if key not in self.kept:
            for path in self.folder.glob(f"*/{key}.json"):
                if (found := _read(path)) is not None:
                    self.kept[key] = found
        return self.kept.get(key)

    def put(self, tuned: Tuned) -> None:
        folder = self.folder / tuned.chain.key
        folder.mkdir(parents=True, exist_ok=True)
        whole = folder / f"{tuned.key}.json"
        part = whole.with_suffix(".part")  # a run that is stopped leaves no half of a file
        part.write_text(json.dumps(tuned.to_json()))
        part.replace(whole)
        self.kept[tuned.key] = tuned

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        kept = [_read(p) for p in sorted((self.folder / chain_key).glob("*.json"))]
        return [t.made for t in kept if t is not None and t.made is not None]

    def note(self, uses: Iterable[Use]) -> None:
        """Nothing asks a benchmark's cache who uses a kernel."""

    def tried(self, key: str) -> Sequence[Tried]:
        """A benchmark's searches are not interrupted: none is gone on with."""
        return ()

    def keep_tried(self, made: CacheKey, chain: Chain, device: str, tried: Sequence[Tried]) -> None:
        """They are not kept, therefore."""

    def related(self, chain: Chain, device: str) -> Sequence[Relative]:
        return ()

    def offered(self, key: CacheKey) -> None:
        """A benchmark uses what it has tuned itself."""


def _read(path: Path) -> Tuned | None:
    try:
        return Tuned.from_json(json.loads(path.read_text()))
    except (KeyError, TypeError, ValueError):
        return None
