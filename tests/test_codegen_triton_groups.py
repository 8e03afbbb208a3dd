"""Warps with work of their own: what they compute whoever goes first, which schedules divide so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from gluon_emulated import Broken, emulate
from triton_agree import TOLERANCE, error, memory_of
from triton_cases import run_time, scheduled

from mcfuser.chain import Chain, attention, from_json, gemm
from mcfuser.codegen.cubin import compile_source
from mcfuser.codegen.triton import Lowering, Source, generate, grid
from mcfuser.codegen.triton.groups import Groups
from mcfuser.space.reference import evaluate, logical
from mcfuser.space.schedule import Schedule
from mcfuser.space.statement import Illegal

HEADS = {"Q": "bmk", "K": "bnk", "V": "bnh"}


def softmax(score: str, domain: str = "", q: str = "b") -> list[str]:
    """The lines of attention, `q` the letters of a head of Q."""
    rows = ", ".join([*q, "m"])
    return [
        f"S[{rows}, n] = sum[k] Q[{rows}, k] * K[b, n, k]",
        f"X[{rows}, n] = {score}",
        f"R[{rows}] = max[n] X[{rows}, n]{domain}",
        f"P[{rows}, n] = exp(X[{rows}, n] - R[{rows}])",
        f"Z[{rows}] = sum[n] P[{rows}, n]{domain}",
        f"U[{rows}, h] = sum[n] half(P[{rows}, n]) * V[b, n, h]{domain}",
        f"O[{rows}, h] = U[{rows}, h] / Z[{rows}]",
    ]


GATE = [
    "G[m, n] = sum[k] X[m, k] * W[k, n]",
    "U[m, n] = sum[k] X[m, k] * V[k, n]",
    "Y[m, n] = G[m, n] / (1.0 + exp(-G[m, n])) * U[m, n]",
]
LINES: Mapping[str, tuple[dict[str, str], Sequence[str]]] = {
    "causal": (HEADS, softmax("S[b, m, n] * 0.3", " where n <= m")),
    "alibi": (
        HEADS | {"a": "b"},
        softmax("S[b, m, n] * 0.3 + a[b] * 0.1 * (n - m)", " where n <= m"),
    ),
    "window": (HEADS, softmax("S[b, m, n] * 0.3", " where n <= m and m <= n + 40")),
    "around": (HEADS, softmax("S[b, m, n] * 0.3", " where n <= m + 9 and m <= n + 40")),
    "cap": (HEADS, softmax("5.0 * tanh(S[b, m, n] / 5.0)")),
    "masked": (HEADS | {"M": "bn"}, softmax("S[b, m, n] * 0.3 + M[b, n]")),
    "grouped": (HEADS | {"Q": "bgmk"}, softmax("S[b, g, m, n] * 0.3", q="bg")),
    "grouped_causal": (
        HEADS | {"Q": "bgmk"},
        softmax("S[b, g, m, n] * 0.3", " where n <= m", q="bg"),
    ),
    "linear": (
        {"A": "mk", "B": "kn", "c": "n"},
        ["C[m, n] = sum[k] A[m, k] * B[k, n]", "Y[m, n] = max(C[m, n] + c[n], 0.0)"],
    ),
    "linear_flipped": ({"A": "mk", "B": "nk"}, ["C[m, n] = sum[k] A[m, k] * B[n, k]"]),
    "gated": ({"X": "mk", "W": "kn", "V": "kn"}, GATE),
    "mlp": (
        {"A": "mk", "B": "kn", "D": "nh", "e": "n", "f": "h", "G": "mh"},
        [
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "T[m, n] = max(C[m, n] + e[n], 0.0)",
            "E[m, h] = sum[n] half(T[m, n]) * D[n, h]",
            "Y[m, h] = E[m, h] + f[h] + G[m, h]",
        ],
    ),
    "norm": (
        {"X": "mk", "B": "kn", "g": "k"},
        ["Y[m, k] = half(X[m, k] * g[k])", "C[m, n] = sum[k] Y[m, k] * B[k, n]"],
    ),
    "long_before": (HEADS, softmax("S[b, m, n] * 0.3", " where n <= m - 200")),
    "empty_rows": (
        HEADS | {"M": "bn"},
        [
            *softmax("S[b, m, n] * 0.3 + M[b, n]", " where n <= m and m <= n + 40"),
            "L[b, m] = Z[b, m] * 1.0",
        ],
    ),
    "scores": (
        {"Q": "imk", "K": "ink", "V": "inh"},
        [
            "X[i, m, n] = sum[k] Q[i, m, k] * K[i, n, k]",
            "O[i, m, h] = sum[n] half(X[i, m, n]) * V[i, n, h]",
        ],
    ),
    "lower": (
        {"A": "mk", "B": "kn", "D": "nh"},
        [
            "T[m, n] = sum[k] A[m, k] * B[k, n]",
            "E[m, h] = sum[n] half(T[m, n]) * D[n, h] where n <= m",
        ],
    ),
    "two": (
        {"A": "mk", "B": "kn", "D": "nh", "F": "nh"},
        [
            "T[m, n] = sum[k] A[m, k] * B[k, n]",
            "E[m, h] = sum[n] half(T[m, n]) * D[n, h] where n <= m",
            "n_end[m, h] = sum[n] half(T[m, n]) * F[n, h]",
            "Y[m, h] = E[m, h] + n_end[m, h]",
        ],
    ),
    "rows": (
        {"A": "bmk", "B": "bkn"},
        [
            "C[b, m, n] = sum[k] A[b, m, k] * B[b, k, n]",
            "r[b] = max[m, n] abs(C[b, m, n])",
            "Y[b, m, n] = C[b, m, n] / r[b]",
        ],
    ),
    "lengths": (
        {"A": "mk", "B": "kn"},
        [
            "q[m] = sum[k] A[m, k] * A[m, k]",
            "C[m, n] = sum[k] A[m, k] * B[k, n]",
            "Y[m, n] = C[m, n] / (q[m] + 1.0)",
        ],
    ),
    "again": (
        HEADS | {"W": "bkh"},
        [
            *softmax("S[b, m, n] * 0.3"),
            "G[b, m, h] = sum[k] Q[b, m, k] * W[b, k, h]",
            "Y[b, m, h] = G[b, m, h] * 1.0",
        ],
    ),
    "weighted": (
        HEADS,
        [
            *softmax("S[b, m, n] * 0.3")[:3],
            "Z[b, m] = sum[n] exp(X[b, m, n] - R[b, m])",
            "P[b, m, n] = exp(X[b, m, n] - R[b, m] - log(Z[b, m]))",
            "O[b, m, h] = sum[n] half(P[b, m, n]) * V[b, n, h]",
        ],
    ),
    "below": (
        HEADS,
        [
            "S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]",
            "T[b, m, n] = tanh(S[b, m, n])",
            "U[b, m, h] = sum[n] half(T[b, m, n]) * V[b, n, h]",
            "O[b, m, h] = max[n] S[b, m, n] * 0.1 - U[b, m, h]",
        ],
    ),
    "wide": (HEADS, [line.replace("half", "") for line in softmax("S[b, m, n] * 0.3")]),
}


def chain_of(name: str, extents: Mapping[str, int], dtype: str) -> Chain:
    """A chain of the list above, or a short form, whose inputs and output have a dtype."""
    if name in ("attention", "gemm"):
        form = attention if name == "attention" else gemm
        return form(*(extents[a] for a in "bmnkh"), dtype=dtype)
    tensors, lines = LINES[name]
    letters = {*"".join(tensors.values())}
    described = {t: {"shape": list(shape), "dtype": dtype} for t, shape in tensors.items()}
    found = from_json({
        "name": name,
        "axes": {a: n for a, n in extents.items() if a in letters},
        "tensors": described,
        "operators": [line.replace("half", dtype) for line in lines],
    })  # fmt: skip
    more = {"scores": ("X",), "empty_rows": ("O",), "again": ("O",)}.get(name, ())
    outputs = tuple(t.name for t in found.tensors if t.name in {*found.outputs, *more})
    half = {*outputs} - {"L"}
    kept = tuple(replace(t, dtype=dtype) if t.name in half else t for t in found.tensors)
    return replace(found, tensors=kept, outputs=outputs)


@dataclass(frozen=True)
class Case:
    """A chain as an expression, sizes as words; `late` where products are issued a turn late."""

    chain: str
    expression: str
    extents: str
    tiles: str
    stages: int = 2
    dtype: str = "float16"
    late: bool = True

    @property
    def plain(self) -> Chain:
        return chain_of(self.chain, {**SMALL, **sizes(self.extents)}, self.dtype)

    @property
    def schedule(self) -> Schedule:
        return scheduled(self.plain, self.expression, {**TILES, **sizes(self.tiles)})

    @property
    def source(self) -> Source:
        return written(self.schedule, self.stages)


SMALL = {"b": 2, "g": 2, "k": 32, "h": 32}
TILES = {"b": 1, "g": 1, "k": 32, "h": 32}
SEEDS = 3


def sizes(words: str) -> dict[str, int]:
    return {a: int(n) for a, n in (w.split("=") for w in words.split())}


def written(schedule: Schedule, stages: int = 2) -> Source:
    return generate(schedule, "kernel", Lowering(stages=stages, tma=True, groups=True))


def wrong(chain: Chain, source: Source, seed: int) -> float:
    """How far the worst output is from what the chain means in float64, in tolerances."""
    memory = memory_of(chain, source, seed)
    expected = evaluate(chain, {n: logical(chain, n, memory[n]) for n in chain.inputs})
    emulate(source, memory, seed)
    every = ((n, TOLERANCE[chain.tensor(n).dtype]) for n in chain.outputs)
    return max(error(chain, n, memory, expected) / tolerance for n, tolerance in every)


def agree(case: Case) -> Source:
    source = case.source
    assert source.gluon
    for seed in range(SEEDS):
        assert wrong(case.plain, source, seed) < 1, source.text
    return source


# --- what they compute ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case("attention", "mh.nk", "m=256 n=256", "m=128 n=32", 4),
        Case("attention", "mh.nk", "m=200 n=200 k=16 h=64", "m=128 n=64 h=64", 3, "bfloat16"),
        Case("attention", "mh.nk", "m=128 n=64", "m=128 n=32"),
        Case("attention", "mh.nk", "m=192 n=64 b=1", "m=192 n=32", 1),
        Case("attention", "mh.nk", "m=300 n=96 h=48", "m=192 n=32 h=16"),
        Case("attention", "mh.nk", "m=300 n=96 b=1", "m=256 n=32", 3),
        Case("attention", "mh.nk", "m=197 n=197 k=24 h=40", "m=128 n=64 k=24 h=40", 3),
        Case("causal", "mh.nk", "m=197 n=197 k=40 h=24", "m=128 n=64 k=40 h=24"),
        Case("window", "mh.nk", "m=197 n=197", "m=128 n=32"),
        Case("cap", "mh.nk", "m=128 n=100", "m=128 n=32"),
        Case("causal", "mh.nk", "m=512 n=300", "m=256 n=64", 4, "bfloat16"),
        Case("causal", "mh.nk", "m=300 n=300", "m=192 n=64"),
        Case("causal", "mh.nk", "m=200 n=256 h=64", "m=128 n=32", 3, "bfloat16"),
        Case("alibi", "mh.nk", "m=256 n=200", "m=128 n=64", 3),
        Case("window", "mh.nk", "m=400 n=256", "m=128 n=32"),
        Case("around", "mh.nk", "m=300 n=256", "m=192 n=16", 3, "bfloat16"),
        Case("cap", "mh.nk", "m=200 n=128 k=64", "m=128 n=32 k=64"),
        Case("masked", "mh.nk", "m=200 n=200", "m=128 n=64"),
        Case("grouped", "gmh.nk", "m=200 n=128", "m=128 n=64", 3),
        Case("grouped_causal", "gmh.nk", "m=300 n=128", "m=192 n=32", 4, "bfloat16"),
        Case("gemm", "mh.nk", "m=200 n=256", "m=128 n=64"),
        Case("mlp", "mh.nk", "m=300 n=128", "m=192 n=32", 3),
        Case("long_before", "mh.nk", "m=400 n=256", "m=128 n=32"),
        Case("empty_rows", "mh.nk", "m=600 n=256", "m=128 n=32"),
        Case("scores", "mh.nk", "i=2 m=256 n=128", "m=128 n=32"),
        Case("two", "mh.nk", "m=256 n=256", "m=128 n=64"),
        Case("lower", "mh.nk", "m=256 n=256 h=64", "m=128 n=64 h=64"),
        Case("again", "mh.nk", "m=200 n=128", "m=128 n=32"),
        Case("weighted", "mh.nk", "m=200 n=128", "m=128 n=32", late=False),
        Case("lower", "mh.nk", "m=512 n=512 h=128", "m=192 n=128 h=128", late=False),
        Case("gemm", "mh.kn", "m=200 n=64 k=128", "m=128 n=64 k=32", 3, late=False),
        Case("linear", "mn.k", "m=200 n=128 k=128", "m=128 n=64", 3, late=False),
        Case("linear", "mn.k", "m=130 n=40 k=200", "m=128 n=16", late=False),
        Case("linear", "mn.k", "m=300 n=136 k=256", "m=192 n=128", 4, "bfloat16", late=False),
        Case("linear_flipped", "mn.k", "m=200 n=128 k=200", "m=128 n=64 k=64", late=False),
        Case("gated", "mn.k", "m=300 n=136 k=256", "m=192 n=64", 3, late=False),
        Case("gated", "mn.k", "m=200 n=64 k=128", "m=128 n=32", 2, "bfloat16", late=False),
    ],
    ids=lambda case: f"{case.chain} {case.extents}",
)
def test_chains_agree(case: Case) -> None:
    assert bool(Groups(case.schedule, case.stages).late) == case.late
    agree(case)


CAUSAL = Case("causal", "mh.nk", "m=256 n=256 b=1", "m=128 n=32")
GATED = Case("gated", "mn.k", "m=200 n=64 k=256", "m=128 n=64", late=False)


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("chain", ["causal", "window", "gemm", "mlp"])
def test_products_that_are_issued_in_their_own_turn_agree(
    monkeypatch: pytest.MonkeyPatch, chain: str, stages: int
) -> None:
    monkeypatch.setattr(Groups, "late", frozenset())
    source = agree(replace(CAUSAL, chain=chain, extents="m=200 n=256", stages=stages))
    assert "slot_before" not in source.text


def test_products_that_do_not_fit_in_registers_are_not_late() -> None:
    case = Case("attention", "mh.nk", "m=192 n=256 k=16 h=128 b=1", "m=192 n=128 h=128")
    assert not Groups(case.schedule, 2).late
    assert Groups(replace(case, tiles="m=128 n=128 h=128").schedule, 2).late
    agree(case)


def test_a_product_whose_sum_its_own_turn_reads_is_not_late() -> None:
    """Triton has no layout for the maximum's tile of m, n and h, but that is not why."""
    case = Case("below", "mh.nk", "m=128 n=128 b=1", "m=128 n=32")
    assert not Groups(case.schedule, 2).late
    for seed in range(SEEDS):
        assert wrong(case.plain, case.source, seed) < 1


def test_heads_in_groups_that_share_the_cache_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    head = 256 * (32 + 32) * 2
    monkeypatch.setattr(grid, "CACHED", 2 * head)
    for chain, expression in (("causal", "mh.nk"), ("grouped_causal", "gmh.nk")):
        source = agree(
            replace(CAUSAL, chain=chain, expression=expression, extents="m=256 n=256 b=4")
        )
        assert re.search(r"\n    b = pid // \d+ \* 2 \+ ", source.text)


def test_turns_inside_a_domain_have_no_mask() -> None:
    """The first turn, which stands before the loop, always compares positions; later ones do past
    those that lie inside."""
    text = CAUSAL.source.text
    bare, masked = "S_inside = S", "S_inside = gl.where(n[None, :] <= m[:, None], S, LOWEST)"
    assert text.count(masked) == 2
    either = f"if n_start < n_inside:\n            {bare}\n        else:\n            {masked}"
    assert text.count(either) == 1
    assert text.count("    for n_start in") == 2  # one of them loads


def test_scores_past_the_end_are_masked_in_the_last_turn_and_nothing_else_is() -> None:
    text = replace(CAUSAL, chain="attention", extents="m=197 n=197", tiles="m=128 n=64").source.text
    assert "if n_start > 133:\n            S = gl.where(n_in[None, :], S, LOWEST)\n" in text
    assert text.count("n_in[None, :]") == 1
    causal = replace(CAUSAL, extents="m=197 n=197").source.text
    assert "n_in[" not in causal, "n <= m ends there"


# --- whoever goes first -----------------------------------------------------------------------

BAD = {
    "a tile of V is given back before its product has ended": (
        CAUSAL,
        r"( +U, U_left = hopper\.warpgroup_mma_wait.*\n)( +mbarrier\.arrive\(V_empty.*\n)",
        r"\2\1",
    ),
    "tiles are given back before their products have ended": (
        GATED,
        r"( +(?:G, )?U = hopper\.warpgroup_mma_wait.*\n)((?: +(?:slot|mbarrier\.arrive).*\n)+)",
        r"\2\1",
    ),
    "a tile is filled when it is full": (CAUSAL, r"1 - phase", "phase"),
    "nobody waits for Q": (CAUSAL, r" +mbarrier\.wait\(Q_full.*\n", ""),
    "nobody waits for K": (CAUSAL, r" +mbarrier\.wait\(K_full.*\n", ""),
    "nobody waits for V": (CAUSAL, r" +mbarrier\.wait\(V_full.*\n", ""),
    "nobody waits for X": (GATED, r" +mbarrier\.wait\(X_full.*\n", ""),
    "nobody waits for W": (GATED, r" +mbarrier\.wait\(W_full.*\n", ""),
    "K is filled at once": (CAUSAL, r" +mbarrier\.wait\(K_empty.*\n", ""),
    "V is filled at once": (CAUSAL, r" +mbarrier\.wait\(V_empty.*\n", ""),
    "V is of this turn": (CAUSAL, r"V_tile\.index\(slot_before", "V_tile.index(slot"),
    "another V is waited for": (CAUSAL, r"V_full\.index\(slot_before", "V_full.index(slot"),
    "V is waited for by this turn's phase": (CAUSAL, r"phase_before\)", "phase)"),
    "another V is given back": (CAUSAL, r"V_empty\.index\(slot_before", "V_empty.index(slot"),
    "V is not given back": (CAUSAL, r" +mbarrier\.arrive\(V_empty.*\n", ""),
    "one group is enough": (CAUSAL, r"(K_empty\.index\(each\), count=)2", r"\g<1>1"),
    "three groups are awaited": (CAUSAL, r"(K_empty\.index\(each\), count=)2", r"\g<1>3"),
    "phases change each turn": (CAUSAL, r"phase = turn // 2 % 2", "phase = turn % 2"),
    "more bytes are expected": (CAUSAL, r"(K_full\.index\(slot\), )2048", r"\g<1>4096"),
    "fewer bytes are expected": (CAUSAL, r"(K_full\.index\(slot\), )2048", r"\g<1>1024"),
    "S is used early": (CAUSAL, r"mma_wait\(1", "mma_wait(2"),
    "U is used early": (CAUSAL, r"mma_wait\(0, deps=\(U", "mma_wait(1, deps=(U"),
    "groups share their rows": (CAUSAL, r"Q_tile\.index\(group", "Q_tile.index(0"),
    "groups share a ring": (GATED, r"slot \* 2 \+ group", "slot * 2"),
    "the tile that leaves is not fenced": (CAUSAL, r" +hopper\.fence.*\n(?= +put)", ""),
    "barriers are not fenced": (CAUSAL, r" +hopper\.fence.*\n(?= +gl)", ""),
    "a tile has not left": (CAUSAL, r" +tma\.store_wait.*\n", ""),
}


@pytest.mark.parametrize("name", BAD)
def test_a_race_or_a_deadlock_is_found(name: str) -> None:
    case, old, new = BAD[name]
    source, plain = case.source, case.plain
    text, count = re.subn(old, new, source.text)
    assert count
    assert any(broken(plain, replace(source, text=text), seed) for seed in range(10))


def broken(chain: Chain, source: Source, seed: int) -> bool:
    try:
        return wrong(chain, source, seed) > 1
    except Broken:
        return True


# --- which divide so --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        Case("causal", "mh.nk", "m=512 n=512 k=64 h=64", "m=128 n=64 k=64 h=64"),
        Case("grouped", "gmh.nk", "m=384 n=256 k=64 h=64", "m=192 n=64 k=64 h=64", 3),
        Case("attention", "mh.nk", "m=512 n=256 k=64 h=64", "m=256 n=64 k=64 h=64", 4),
        Case("gated", "mn.k", "m=384 n=128 k=256", "m=192 n=64 k=64", 3, "bfloat16"),
    ],
    ids=lambda case: case.chain,
)
def test_kernels_compile(case: Case) -> None:
    source = case.source
    binary = compile_source(source, "sm_90")
    groups = sizes(case.tiles)["m"] // 64
    assert binary.threads == source.threads == 128 * (groups + 1)
    assert not binary.spills


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(CAUSAL, tiles="m=64 n=32"), "64 rows are not those of 2 to 4 warp groups"),
        (replace(CAUSAL, tiles="m=160 n=32"), "160 rows are not those of 2 to 4 warp groups"),
        (
            Case("attention", "mh.nk", "m=512 n=512 k=64 h=64", "m=256 n=128 k=64 h=64"),
            "a thread of 4 warp groups has no 126 registers",
        ),
        (replace(CAUSAL, tiles="m=128 n=32 k=16"), "want one loop, and there are 2"),
        (replace(CAUSAL, tiles="m=128 n=256"), "want one loop, around everything"),
        (replace(CAUSAL, expression="m.n(k,h)", tiles="m=128 n=32 h=16"), "want one loop, around"),
        (replace(CAUSAL, chain="wide"), "'V' is changed before it enters a product"),
        (replace(GATED, chain="norm"), "'X' is loaded in a loop, and not as an operand"),
        (
            Case("rows", "b.k", "m=128 n=64 k=256", "m=128 n=64", late=False),
            "something is reduced over 'm'",
        ),
        (replace(GATED, chain="lengths"), "'A' is read by a product and by something else"),
        (replace(CAUSAL, dtype="float32"), "is no matrix in half precision"),
        (replace(CAUSAL, chain="gemm", extents="m=256 n=132"), "'B' cannot be loaded through"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_does_not_divide_is_refused(case: Case, reason: str) -> None:
    with pytest.raises(Illegal, match=re.escape(reason)):
        written(case.schedule)


def test_parts_of_a_split_are_refused() -> None:
    tiles = {**TILES, **sizes(CAUSAL.tiles)}
    schedule = scheduled(CAUSAL.plain, CAUSAL.expression, tiles, "n", 4)
    with pytest.raises(Illegal, match="warp groups do not run parts of a split"):
        written(schedule)


@pytest.mark.parametrize("axis", ["b", "m", "n"])
def test_extents_known_at_run_time_are_refused(axis: str) -> None:
    tiles = {**TILES, **sizes(CAUSAL.tiles)}
    schedule = scheduled(run_time(CAUSAL.plain, axis), CAUSAL.expression, tiles)
    with pytest.raises(Illegal, match="cannot be loaded through a tensor map"):
        written(schedule)
