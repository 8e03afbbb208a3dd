"""The file mcfuser.lock: its text, what is refused, and how batches change it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcfuser.errors import InputError
from mcfuser.lock import (
    BoxPin,
    ChainPin,
    EntryPin,
    KernelPin,
    Lock,
    ModelPin,
    read_lock,
    rounded,
    updated,
)

CHAIN = ChainPin(
    name="c",
    axes="m=4 n=4",
    types="A float32",
    operators=("B[m] = sum[n] A[m, n]",),
    cut=(1,),
    kernels=(KernelPin(expression="mn", tiles={"n": 4, "m": 2}, knobs={"warps": 4, "on": True}),),
)
LEFT = ChainPin(name="d", axes="m=4", types="A float32", operators=("B[m] = A[m]",))


def compiled(device: str = "cpu/a", version: str = "1", **chains: ChainPin) -> ModelPin:
    return ModelPin(device=device, toolchain={"tvm": version}, sources="s", chains=chains)


def entry(*chains: str, seconds: float | None = 1e-3) -> EntryPin:
    return EntryPin(model="m", module="l", chains=chains, seconds=seconds)


ONE = updated(Lock(), [("x", entry("k"), compiled(k=CHAIN))], {})


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "mcfuser.lock"
    path.write_text(ONE.text)
    assert read_lock(path) == ONE
    assert read_lock(path).text == ONE.text
    knobs = read_lock(path).devices["cpu/a"].chains["k"].kernels[0].knobs
    assert knobs == {"warps": 4, "on": True} and knobs["on"] is True


def test_the_text_is_in_one_order() -> None:
    document = json.loads(ONE.text)
    kernel = document["devices"]["cpu/a"]["chains"]["k"]["kernels"][0]
    assert list(kernel["tiles"]) == ["m", "n"] and list(document) == ["devices", "format"]
    other = Lock.model_validate(json.loads(ONE.text))
    assert other.text == ONE.text and ONE.text.endswith("}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "JSON"), ("[]", "valid dictionary|object"), ("{", "JSON"), ("[" * 100_000, "JSON"),
        ('{"format": 2, "devices": {}}', "format: Input should be 1"),
        ('{"format": 1, "kernels": {}}', "kernels: Extra"),
        (ONE.text.replace('"m": 2', '"m": 0'), "tiles.m: .*greater"),
        (ONE.text.replace('"m": 2', '"m": "a"'), "tiles.m: .*integer"),
        (ONE.text.replace("0.001", "-1"), "entries.x.seconds: .*greater"),
        (ONE.text.replace("0.001", "NaN"), "entries.x.seconds|JSON"),
        ('{"format": 1, "devices": 3}', "devices: Input should be an object"),
    ],
)  # fmt: skip
def test_what_is_no_lock_is_refused_in_a_sentence(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mcfuser.lock"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as refused:
        read_lock(path)
    assert "\n" not in str(refused.value) and "mcfuser.lock" in str(refused.value)


def test_a_lock_that_is_not_there_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read: No such file.*--update-lock writes one"):
        read_lock(tmp_path / "mcfuser.lock")


def test_entries_of_the_batch_replace_all_others_of_their_device() -> None:
    two = updated(ONE, [("y", entry("j"), compiled(j=LEFT))], {"cpu/a": frozenset()})
    assert set(two.devices["cpu/a"].entries) == {"y"}
    assert set(two.devices["cpu/a"].chains) == {"j"}, "no entry has the other chain any more"


def test_what_failed_stays_locked() -> None:
    two = updated(ONE, [("y", entry("j"), compiled(j=LEFT))], {"cpu/a": frozenset({"x"})})
    assert set(two.devices["cpu/a"].entries) == {"x", "y"}
    assert set(two.devices["cpu/a"].chains) == {"k", "j"}
    none = updated(ONE, [], {"cpu/a": frozenset({"x"})})
    assert none == ONE


def test_what_other_compilers_made_does_not_stay() -> None:
    made = [("y", entry("j"), compiled(version="2", j=LEFT))]
    two = updated(ONE, made, {"cpu/a": frozenset({"x"})})
    assert set(two.devices["cpu/a"].entries) == {"y"}


def test_other_devices_stay_as_they_are() -> None:
    two = updated(ONE, [("x", entry("k"), compiled("cpu/b", k=LEFT))], {"cpu/b": frozenset()})
    assert two.devices["cpu/a"] == ONE.devices["cpu/a"]
    assert two.devices["cpu/b"].chains["k"] == LEFT


def test_the_first_entry_decides_a_chain_that_several_have() -> None:
    made = [("x", entry("k"), compiled(k=CHAIN)), ("y", entry("k"), compiled(k=LEFT))]
    assert updated(Lock(), made, {}).devices["cpu/a"].chains["k"] == CHAIN
    again = updated(ONE, [("y", entry("k"), compiled(k=LEFT))], {"cpu/a": frozenset({"x"})})
    assert again.devices["cpu/a"].chains["k"] == LEFT, "what is new replaces what was locked"


def test_buckets_are_found_by_device_and_model() -> None:
    box = BoxPin(low={"n": 1}, high={"n": 8})
    pinned = EntryPin(model="m", module="l", chains=(), seconds=None, buckets=(box,))
    lock = updated(Lock(), [("x", pinned, compiled())], {})
    assert lock.buckets("cpu/a", "m") == (box,)
    assert lock.buckets("cpu/a", "other") is None and lock.buckets("cpu/b", "m") is None


def test_seconds_have_four_digits() -> None:
    assert rounded(0.00123456) == 0.001235
