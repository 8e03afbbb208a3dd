"""The example chains, at small extents."""

from __future__ import annotations

import json
from pathlib import Path

from mcfuser.chain import Chain, from_json
from tests.support.paths import CHAINS

EXAMPLES = sorted((CHAINS).glob("*.json"))

ROLLED = {"attention", "causal_attention", "alibi_attention", "grouped_query_attention",
          "soft_cap_attention", "sliding_window_attention", "masked_attention", "sink_attention",
          "decode_attention", "decode_grouped_query_attention",
          "cached_decode_attention"}  # fmt: skip


def document(path: Path) -> str:
    return path.read_text()


def small(text: str, sizes: dict[str, int]) -> Chain:
    """The chain at other extents; a mean over 768 becomes one over what 768 became."""
    found = json.loads(text)
    found["axes"] = {a: min(sizes[a], e) for a, e in found["axes"].items()}
    mean = next((a for a, e in json.loads(text)["axes"].items() if e == 768 and a in "kn"), None)
    if mean is not None:
        lines = found["operators"]
        found["operators"] = [x.replace("768.0", f"{found['axes'][mean]}.0") for x in lines]
    return from_json(found)
