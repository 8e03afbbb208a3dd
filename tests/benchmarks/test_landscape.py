"""Landscapes and their files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from landscape import Landscape, Point, read, write
from mcfuser.chain import gemm
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.errors import InputError

H200 = CATALOGUE["nvidia/h200"]


def test_a_landscape_survives_its_file(tmp_path) -> None:
    points = (
        Point("mh.nk", (64, 64, 64, 16), 4, 2, "last", "n", 2, 49152, 82, 0, 2.5e-6, 3e-4),
        Point("mh.nk", (64, 64, 64, 16), 4, 1, failed="it says \"no\""),
        Point("mh.nk", (128, 64, 64, 16), 4, 3, tma=True, groups=True),
    )  # fmt: skip
    chain = gemm(1, 512, 256, 64, 64, "float16")
    one = Landscape("G1", chain, H200, {"sm_mhz": 1980}, points)
    write(tmp_path / "G1.json", one)
    assert read(tmp_path / "G1.json") == one
    assert replace(one, name="X") != one


@pytest.mark.parametrize("text", ["{}", "[1]", "no JSON"])
def test_a_file_that_is_no_landscape_is_told(text: str, tmp_path) -> None:
    path = tmp_path / "G1.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"^landscape '.*G1\.json'"):
        read(path)
