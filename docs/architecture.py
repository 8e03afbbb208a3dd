"""Writes the printed text in docs/architecture.md: python docs/architecture.py

The page follows one chain through every room. What stands there between `<!-- begin NAME -->` and
`<!-- end -->` is printed by the rooms themselves, by the functions of stations.py; the prose
between the blocks is written by hand. The scripts lie beside the page that they write, outside the
package, because nothing that is installed needs them. `make docs` runs this one, and a test
compares its text with the file byte for byte. It takes a few seconds, measures nothing and needs
no GPU: for the station where a kernel is timed, walk.py holds the answer of one run.
"""

from __future__ import annotations

import re

from stations import BLOCKS
from walk import ROOT, Walk

PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end -->", re.DOTALL)


def page(text: str) -> str:
    """The page with every block printed anew. Raises ValueError where the page's blocks are not
    those of `BLOCKS`."""
    walk, named = Walk(), BLOCK.findall(text)
    if sorted(named) != sorted(BLOCKS):
        wrong = {*named} ^ {*BLOCKS} or {n for n in named if named.count(n) > 1}
        raise ValueError(f"blocks of {PAGE.name} that are not there once: {', '.join(wrong)}")

    def anew(found: re.Match[str]) -> str:
        return f"<!-- begin {found[1]} -->\n{BLOCKS[found[1]](walk)}\n<!-- end -->"

    return BLOCK.sub(anew, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
