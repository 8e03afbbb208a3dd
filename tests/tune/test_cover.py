"""Which kernels a chain gets, with a made-up search: what is tuned, left out, and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from mcfuser.algebra.quotient import guarded
from mcfuser.chain import Chain, attention, cut, from_json, gemm, unfused_cut
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.measure.rounds import MARGIN, Interleaved
from mcfuser.tune.cover import (
    AXES,
    FAR,
    Cuts,
    Decision,
    decide,
    expected_in_pieces,
    likely,
    most_pieces,
)
from mcfuser.tune.tuned import NoCandidate, Tuned

H200 = CATALOGUE["nvidia/h200"]
SMALL = attention(8, 64, 64, 64, 64, "float16")
LONG = attention(32, 4096, 4096, 128, 128, "float16")
Pieces = tuple[str, ...]


NORM = from_json(
    {"axes": {"m": 16, "n": 110592}, "tensors": {"X": {"shape": ["m", "n"], "dtype": "float16"}},
     "operators": ["M[m] = sum[n] float32(X[m, n])",
                   "V[m] = sum[n] (X[m, n] - M[m]) * (X[m, n] - M[m])",
                   "Y[m, n] = (X[m, n] - M[m]) / sqrt(V[m] + 0.001)"]}
)  # fmt: skip


def pieces(chain: Chain) -> Pieces:
    return tuple(o.out for o in chain.operators)


def kernel(chain: Chain, seconds: float, measured: bool = True) -> Tuned:
    return Tuned(
        chain.key, chain, H200.name, "", {}, {}, "", b"", seconds, seconds if measured else None,
        0.0, {}, 1,
    )  # fmt: skip


@dataclass
class Bench:
    """Seconds by a chain's last operator and its length: of the search, and of the model."""

    searched: Mapping[tuple[int, str], float]
    expected: Mapping[tuple[int, str], float] = field(default_factory=dict)
    together: Sequence[float] | Interleaved | None = None
    measured: bool = True
    asked: list[Pieces] = field(default_factory=list)
    compared: list[int] = field(default_factory=list)
    predicted: list[Pieces] = field(default_factory=list)

    def search(self, chain: Chain) -> Tuned:
        self.asked.append(pieces(chain))
        seconds = self.searched.get(where(chain))
        if seconds is None:
            raise NoCandidate(f"nothing for {chain.name}")
        return kernel(chain, seconds, self.measured)

    def predict(self, chain: Chain) -> float:
        self.predicted.append(pieces(chain))
        return self.expected.get(where(chain), self.searched.get(where(chain), float("inf")))

    def compare(self, programs) -> Interleaved:
        self.compared = [len(p) for p in programs]
        if self.together is not None:
            timed = self.together
            return timed if isinstance(timed, Interleaved) else Interleaved(tuple(timed))
        return Interleaved(tuple(sum(t.predicted for t, _ in p) for p in programs))

    def decide(self, chain: Chain, device=H200, cuts: Cuts = "all") -> Decision:
        return decide(chain, device, self.search, self.predict, self.compare, cuts)


def where(chain: Chain) -> tuple[int, str]:
    return len(chain.operators), chain.operators[-1].out.partition("_")[0]


# softmax's piece rounds what it hands on, so it has an operator more than the chain has
PARTS = {(2, "X"): 2e-6, (4, "P"): 3e-6, (2, "O"): 2e-6}
WHOLE = {(7, "O"): 5e-6}


def test_one_kernel_is_kept_where_it_is_faster_than_its_pieces() -> None:
    bench = Bench(PARTS | WHOLE)
    made = bench.decide(SMALL)
    assert bench.asked == [
        ("S", "X", "R", "P", "Z", "U", "O"), ("S", "X"), ("R", "P", "Z", "P_float16"), ("U", "O"),
    ]  # fmt: skip
    assert made.kept is not None and made.kept.cut == (7,)
    assert (made.fused_seconds, made.unfused_seconds) == (5e-6, pytest.approx(7e-6))
    assert made.reason == "1.40x over unfused in 3 kernels, measured"


@pytest.mark.parametrize("gain", [1.0, 0.985])
def test_a_gain_within_noise_keeps_the_pieces(gain: float) -> None:
    made = Bench(PARTS | WHOLE, together=[7e-6 * gain, 7e-6]).decide(SMALL)
    assert gain > MARGIN and made.kept is not None and made.kept.cut == unfused_cut(SMALL)
    assert made.reason.startswith("3 kernels are kept: fused takes")


def many_axes(count: int) -> Chain:
    """Two products, a window and a patch among their axes."""
    rows = "mijlopq"[: count - 3]
    index = ", ".join(rows)
    tensors = {"A": f"{rows}k", "B": "kn", "D": "nh", "E": f"{rows}h"}
    lines = [f"C[{index}, n] = sum[k] A[{index}, k] * B[k, n]",
             f"E[{index}, h] = sum[n] C[{index}, n] * D[n, h]"]  # fmt: skip
    shapes = {t: {"shape": list(axes), "dtype": "float32"} for t, axes in tensors.items()}
    extents = dict.fromkeys(f"{rows}knh", 4)
    return from_json({"name": "c", "axes": extents, "tensors": shapes, "operators": lines})


@pytest.mark.parametrize("count", [AXES, AXES + 1])
def test_a_chain_of_many_axes_is_not_looked_at_whole(count: int) -> None:
    """It is not even priced."""
    bench = Bench({(1, "C"): 1e-6, (1, "E"): 1e-6, (2, "E"): 1e-6})
    made = bench.decide(many_axes(count))
    whole = ("C", "E")
    if count > AXES:
        assert whole not in bench.asked and bench.predicted == []
        assert len(made.kernels) == 2 and f"its {count} axes" in made.reason
    else:
        assert whole in bench.asked and whole in bench.predicted


def test_pieces_alone_are_tuned_where_there_is_no_time_to_try_them_together() -> None:
    """Nor is any space priced."""
    bench = Bench(PARTS | WHOLE)
    made = bench.decide(SMALL, cuts="unfused")
    assert [len(p) for p in bench.asked] == [2, 4, 2] and not bench.predicted
    assert made.kept is not None and made.kept.cut == unfused_cut(SMALL)
    assert made.reason == "no time was left to try fewer kernels"
    without = {k: v for k, v in (PARTS | WHOLE).items() if k != (4, "P")}
    made = Bench(without).decide(SMALL, cuts="unfused")
    assert made.kept is not None and made.kept.cut == (7,), "a piece has no kernel"


def test_pieces_that_no_schedule_could_make_fast_enough_are_not_tuned() -> None:
    bench = Bench({(7, "O"): 1e-4})
    made = bench.decide(LONG)
    assert [len(p) for p in bench.asked] == [7]
    assert made.fused is not None and made.unfused_seconds is None
    assert made.reason.startswith("unfused takes ") and made.reason.endswith(" us at least")


def test_pieces_are_given_up_once_those_tuned_take_longer_than_the_whole() -> None:
    bench = Bench(WHOLE | {(2, "X"): 8e-6})
    made = bench.decide(SMALL)
    assert [len(p) for p in bench.asked] == [7, 2]
    assert made.reason == "in 3 kernels, 1 of them takes 8.0 us alone"
    assert made.kept is not None and made.kept.cut == (7,) and made.fused_seconds == 5e-6


def test_pieces_that_are_slower_by_no_more_than_noise_are_timed_against_the_whole() -> None:
    """Alone the first one took longer than the whole chain; timed together all of them are
    faster."""
    close = {(2, "X"): 5.2e-6, (4, "P"): 1e-7, (2, "O"): 1e-7}
    bench = Bench(WHOLE | close, together=[5.6e-6, 5.4e-6])
    made = bench.decide(SMALL)
    assert [len(p) for p in bench.asked] == [7, 2, 4, 2]
    assert made.kept is not None and made.kept.cut == (2, 3, 2)
    assert made.unfused_seconds == 5.4e-6


def test_an_intermediate_cut_is_tuned_where_the_model_expects_it_to_win() -> None:
    middle = {(2, "X"): 1e-6, (5, "O"): 3e-6}
    bench = Bench(WHOLE | PARTS | middle)
    made = bench.decide(SMALL)
    assert bench.asked[-2:] == [("S", "X"), ("R", "P", "Z", "U", "O")]
    assert bench.compared == [1, 2, 3]
    assert made.kept is not None and made.kept.cut == (2, 5)
    assert made.reason == "2 kernels are kept: fused takes 1.25x their time, measured"
    assert made.fused_seconds == pytest.approx(4e-6)
    assert made.unfused_seconds == pytest.approx(6e-6)
    assert bench.decide(SMALL, cuts="ends").kept == made.kept
    alone = bench.decide(SMALL, cuts="unfused").kept
    assert alone is not None and alone.cut == (2, 3, 2)


def test_the_model_is_not_asked_about_a_cut_that_takes_longer_at_least() -> None:
    """What two kernels store of long scores and load again takes more time than one kernel."""
    apart = {(2, "X"): 9e-3, (3, "U"): 1e-6, (2, "O"): 1e-6}
    for whole, asked in ((300e-6, False), (8e-3, True)):
        bench = Bench({(7, "O"): whole, **apart})
        made = bench.decide(LONG)
        assert made.kept is not None and made.kept.cut == (7,)
        assert (5 in {len(p) for p in bench.predicted}) == asked


@pytest.mark.parametrize(("count", "cuts"), [(5, range(2, 5)), (6, ())])
def test_the_model_is_asked_about_the_cuts_of_few_pieces(count: int, cuts: Sequence[int]) -> None:
    lines = [
        f"T{i}[m, a{i}] = sum[a{i - 1}] T{i - 1}[m, a{i - 1}] * W{i}[a{i - 1}, a{i}]"
        for i in range(1, count + 1)
    ]
    extents = {"m": 64, **{f"a{i}": 64 for i in range(count + 1)}}
    tensors = {"T0": ("m", "a0"), **{f"W{i}": (f"a{i - 1}", f"a{i}") for i in range(1, count + 1)}}
    row = from_json({
        "name": "row", "axes": extents, "outputs": [f"T{count}"], "operators": lines,
        "tensors": {n: {"shape": list(axes)} for n, axes in tensors.items()},
    })  # fmt: skip
    searched = {(n, f"T{i}"): n * 1e-6 for n in (1, count) for i in range(1, count + 1)}
    bench = Bench(searched)
    bench.decide(row)
    assert {len(p) for p in bench.predicted} == {1, *cuts, count}


def test_the_model_is_taken_to_be_as_far_off_as_it_was_for_the_best() -> None:
    """It expects 2.5 us of the intermediate cut, but of the whole 1 us, which took 5."""
    bench = Bench(WHOLE | PARTS, {(7, "O"): 1e-6, (5, "O"): 0.5e-6, (2, "X"): 2e-6})
    bench.decide(SMALL)
    assert ("R", "P", "Z", "U", "O") not in bench.asked


SUMS = {(3, "Y"): 23e-6, (1, "M"): 7e-6, (1, "V"): 7e-6, (1, "Y"): 9e-6, (2, "Y"): 22e-6}


@pytest.mark.parametrize("cuts", ["ends", "unfused"])
def test_where_time_is_short_the_likeliest_kernels_of_a_norm_are_tuned_alone(cuts: Cuts) -> None:
    """Both sums in a kernel that is split, and what is normalized in another."""
    bench = Bench(SUMS | {(2, "V"): 8e-6})
    made = bench.decide(NORM, cuts=cuts)
    assert bench.asked == [("M", "V"), ("Y",)]
    assert made.kept is not None and made.kept.cut == (2, 1)
    assert made.reason == "no product, 2 kernels: predicted to be the fastest"
    bench = Bench(SUMS | {(2, "V"): 16e-6})
    assert bench.decide(NORM, cuts=cuts).kernels and bench.asked == [("M", "V", "Y")]
    bench = Bench(SUMS, {(2, "V"): 8e-6})  # which turn out to have no kernel
    made = bench.decide(NORM, cuts=cuts)
    assert bench.asked[0] == ("M", "V") and made.kept is not None and len(made.kept.cut) == 3


def test_with_time_all_of_a_norms_cuts_are_tuned() -> None:
    bench = Bench(SUMS | {(2, "V"): 8e-6})
    made = bench.decide(NORM)
    assert bench.asked == [("M", "V", "Y"), ("M",), ("V",), ("Y",), ("M", "V"), ("Y",)]
    assert made.kept is not None and made.kept.cut == (2, 1)


GROUPS = from_json(
    {"axes": {"m": 2, "i": 32, "j": 10, "l": 64, "n": 10, "p": 64},
     "tensors": {"X": {"shape": ["m", "p", "i", "n"]}},
     "operators": ["M[m, i] = sum[n, p] X[m, p, i, n]",
                   "V[m, i] = sum[n, p] (X[m, p, i, n] - M[m, i]) * (X[m, p, i, n] - M[m, i])",
                   "Y[m, i, j, l] = (X[m, l, i, j] - M[m, i]) / sqrt(V[m, i] + 0.001)"]}
)  # fmt: skip


@pytest.mark.parametrize("cuts", ["all", "ends", "unfused"])
def test_a_norm_of_many_axes_is_not_looked_at_whole(cuts: Cuts) -> None:
    """Nor what is normalized with one of its sums; its sums have four axes."""
    bench = Bench(SUMS | {(3, "Y"): 1e-6, (2, "Y"): 1e-6, (2, "V"): 8e-6})
    made = bench.decide(GROUPS, cuts=cuts)
    assert made.kept is not None and made.kept.cut == (2, 1)
    asked = {*bench.asked, *bench.predicted}
    assert ("M", "V") in asked and not asked & {("M", "V", "Y"), ("V", "Y")}
    assert expected_in_pieces(GROUPS, H200, bench.predict) == pytest.approx(17e-6)
    assert expected_in_pieces(NORM, H200, bench.predict) == pytest.approx(1e-6)
    assert expected_in_pieces(SMALL, H200, Bench(WHOLE).predict) == WHOLE[7, "O"]


def test_what_has_no_kernel_is_said() -> None:
    made = Bench(PARTS).decide(SMALL)
    assert made.fused is None and made.kept is not None and made.kept.cut == (2, 3, 2)
    assert made.reason == f"nothing for {SMALL.name}"
    assert (made.fused_seconds, made.unfused_seconds) == (None, pytest.approx(7e-6))
    none = Bench({}).decide(SMALL)
    assert none.kept is None and none.kernels == ()
    assert none.reason.startswith("left to TVM: nothing for")
    one = replace(gemm(1, 64, 64, 64, 64), operators=gemm(1, 64, 64, 64, 64).operators[:1],
                  outputs=("C",))  # fmt: skip
    assert Bench({}).decide(one).reason.startswith("left to TVM: nothing for")
    assert Bench({(1, "C"): 1e-6}).decide(one).reason == "one product with its epilogue"


def rounds(count: int, *shares: float) -> Interleaved:
    """So many equal rounds of three covers' times, or of two."""
    times = tuple(tuple(s * 1e-6 * (1 + i % 3) for i in range(count)) for s in shares)
    return Interleaved(tuple(t[0] for t in times), times, {"busy": False})


def test_a_decision_says_how_sure_it_is() -> None:
    made = Bench(PARTS | WHOLE, together=rounds(7, 5.0, 7.0)).decide(SMALL)
    assert made.kept is not None and made.kept.cut == (7,)
    assert made.reason == (
        "1.40x over unfused in 3 kernels, measured in 7 rounds, between 1.40x and 1.40x"
    )
    assert made.sure is not None and made.sure > 0.98 and made.conditions == {"busy": False}
    assert made.ratio == (pytest.approx(1.4), pytest.approx(1.4))
    slower = Bench(PARTS | WHOLE, together=rounds(7, 7.0, 5.0)).decide(SMALL)
    assert (
        slower.kept is not None
        and slower.kept.cut == unfused_cut(SMALL)
        and slower.sure == made.sure
    )


def test_what_the_model_chose_is_measured_where_it_is_timed_with_others() -> None:
    timed = rounds(7, 5.0, 7.0)
    made = Bench(PARTS | WHOLE, together=timed, measured=False).decide(SMALL)
    assert made.reason == (
        "1.40x over unfused in 3 kernels, measured in 7 rounds, between 1.40x and 1.40x"
    )


@pytest.mark.parametrize("fused", [(4.0, 4.0, 9.0), (5.0, 9.0, 3.0)])
def test_what_cannot_be_told_from_noise_keeps_the_pieces(fused) -> None:
    """Its median is far smaller, but every third round says otherwise."""
    times = tuple(1e-6 * fused[i % 3] for i in range(12)), (6e-6,) * 12
    timed = Interleaved((4e-6, 6e-6), times, {"busy": True})
    made = Bench(PARTS | WHOLE, together=timed).decide(SMALL)
    assert made.kept is not None and made.kept.cut == unfused_cut(SMALL)
    assert made.reason.startswith(
        "3 kernels are kept: the gain cannot be told from noise, fused takes "
    )
    assert made.sure is not None and made.sure < 0.98


def test_an_intermediate_cut_that_is_not_surely_faster_gives_way_to_one_that_is() -> None:
    middle = {(2, "X"): 1e-6, (5, "O"): 3e-6}
    noisy = tuple(1e-6 * (3.0 if i % 3 else 9.0) for i in range(9))
    timed = Interleaved((5e-6, 3e-6, 7e-6), ((5e-6,) * 9, noisy, (7e-6,) * 9), {})
    made = Bench(WHOLE | PARTS | middle, together=timed).decide(SMALL)
    assert made.kept is not None and made.kept.cut == (7,)
    assert made.sure is not None and made.sure > 0.98


def test_without_the_device_the_words_say_so() -> None:
    made = Bench(PARTS | WHOLE, measured=False).decide(SMALL)
    assert made.reason.endswith(", predicted, not measured")


@pytest.mark.parametrize(
    ("times", "kept"),
    [
        ((1.0, 1.015, 1.03), 1),
        ((1.015, 1.0, 1.03), 2),
        ((1.0, 1.0, 1.015), 3),
        ((1.0, 1.03, 1.03), 1),
        ((1.05, 1.0, 1.03), 2),
        ((1.05, 1.02, 1.0), 3),
        ((float("nan"), 1.0, 1.03), 2),
        ((1.0, float("nan"), float("inf")), 1),
        ((1.0, 1.03, float("nan")), 1),
        ((0.0, 1.0, 1.03), 2),
        ((1.0, 0.0, 1.03), 1),
    ],
)
def test_the_fastest_of_what_is_faster_than_unfused(times, kept: int) -> None:
    middle = {(2, "X"): 1e-6, (5, "O"): 3e-6}
    made = Bench(WHOLE | PARTS | middle, together=times).decide(SMALL)
    cut = made.kept.cut if made.kept is not None else ()
    assert len(cut) == kept
    assert "inf" not in made.reason and "nan" not in made.reason


def test_a_cover_that_cannot_be_timed_with_the_others_is_not_kept() -> None:
    made = Bench(PARTS | WHOLE, together=[float("inf"), 7e-6]).decide(SMALL)
    assert made.kept is not None and made.kept.cut == (2, 3, 2)
    assert made.fused_seconds is None
    made = Bench(PARTS | WHOLE, together=[float("inf"), float("inf")]).decide(SMALL)
    assert made.reason == "none of them could be timed with the others"


def test_a_whole_chain_that_is_expected_to_take_far_longer_is_not_tuned() -> None:
    far = (1 + 1e-6) * FAR * sum(PARTS.values())
    bench = Bench(PARTS | WHOLE, expected={(7, "O"): far})
    made = bench.decide(SMALL)
    assert pieces(SMALL) not in bench.asked and made.fused is None
    assert made.kept is not None and made.kept.cut == unfused_cut(SMALL)
    assert made.reason == "fused is predicted to take 3.0x the time of 3 kernels"
    near = Bench(PARTS | WHOLE, expected={(7, "O"): far / (1 + 1e-5)})
    near.decide(SMALL)
    assert near.asked[0] == pieces(SMALL)


def test_a_whole_chain_is_tuned_where_a_piece_of_it_has_no_kernel() -> None:
    parts = {k: v for k, v in PARTS.items() if k != (4, "P")}
    bench = Bench(parts | WHOLE, expected={(7, "O"): 1.0, (4, "P"): 1e-6})
    made = bench.decide(SMALL)
    assert bench.asked[-1] == pieces(SMALL)
    assert made.kept is not None and made.kept.cut == (7,)


def test_without_the_whole_an_intermediate_cut_may_still_win() -> None:
    middle = {(2, "X"): 1e-6, (5, "O"): 3e-6}
    bench = Bench(PARTS | middle, expected={(7, "O"): 1.0})
    made = bench.decide(SMALL)
    assert pieces(SMALL) not in bench.asked and bench.compared == [2, 3]
    assert made.kept is not None and made.kept.cut == (2, 5)


def test_the_chains_that_are_likely_to_be_tuned() -> None:
    (first, *_) = cut(SMALL, unfused_cut(SMALL))
    assert likely(first, "all") == likely(first, "unfused") == (first,)
    whole, *apart = likely(SMALL, "ends")
    assert whole is SMALL
    assert [pieces(c) for c in apart] == [pieces(c) for c in likely(SMALL, "unfused")]
    assert len(apart) == len(unfused_cut(SMALL))
    assert [c.key for c in apart] == [c.key for c in cut(guarded(SMALL), unfused_cut(SMALL))]


def test_a_chain_without_products_has_pieces_where_its_rows_are_too_few() -> None:
    assert most_pieces(NORM, H200) == (1, 1, 1)
    assert most_pieces(NORM, replace(H200, units=17)) == (1, 1, 1)
    assert most_pieces(NORM, replace(H200, units=16)) == (3,)
    assert most_pieces(SMALL, H200) == unfused_cut(SMALL)


APART = {(1, "M"): 2e-6, (1, "V"): 2e-6, (1, "Y"): 2e-6}


def test_reductions_have_kernels_of_their_own_where_that_is_faster() -> None:
    bench = Bench({**APART, (3, "Y"): 15e-6}, expected={(2, "Y"): 5e-6, (2, "V"): 5e-6})
    made = bench.decide(NORM)
    assert bench.asked == [("M", "V", "Y"), ("M",), ("V",), ("Y",)]
    assert made.kept is not None and made.kept.cut == made.unfused == (1, 1, 1)
    assert "3 kernels are kept: fused takes 2.50x" in made.reason


def test_two_reductions_may_share_a_kernel() -> None:
    bench = Bench({**APART, (3, "Y"): 15e-6, (2, "V"): 3e-6}, expected={(2, "Y"): 5e-6})
    made = bench.decide(NORM)
    assert bench.asked[-2:] == [("M", "V"), ("Y",)]
    assert made.kept is not None and made.kept.cut == (2, 1)


@pytest.mark.parametrize("cuts", ["all", "ends", "unfused"])
def test_reductions_stay_together_where_the_model_expects_no_gain(cuts: Cuts) -> None:
    bench = Bench({**APART, (3, "Y"): 6e-6})
    made = bench.decide(NORM, cuts=cuts)
    assert bench.asked == [("M", "V", "Y")] and not bench.compared
    assert made.kept is not None and made.kept.cut == (3,)
    assert made.reason == "no product, one kernel: 3 are not predicted to be faster"


def test_a_norm_that_no_kernel_computes_whole_is_computed_in_pieces() -> None:
    bench = Bench(APART, expected={(3, "Y"): 1e-6})
    made = bench.decide(NORM)
    assert made.kept is not None and made.kept.cut == (1, 1, 1)
