"""However a chain is written, its reductions are fused the same way, to the same result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcfuser.algebra.dependence import dependences
from mcfuser.algebra.roll import Roll
from mcfuser.chain import Chain, Operator, Tensor
from mcfuser.expr import Call, Cast, Const, Expr, Read, read, rewrite
from mcfuser.space.expression import bind, loop_axes, tilings
from mcfuser.space.interpret import interpret
from mcfuser.space.plan import Plan
from mcfuser.space.program import program
from mcfuser.space.reference import evaluate
from tests.support.chains import LINES, chain, inputs, renamed

SIZES = {"b": 2, "m": 5, "n": 7, "k": 6, "h": 4, "p": 3, "c": 2}
SOFTMAX = ["R[m] = max[n] X[m, n]", "P[m, n] = exp(X[m, n] - R[m])", "Z[m] = sum[n] P[m, n]"]
MORE = {
    "layer_norm_projection": ({"X": "mk", "B": "kn", "g": "k", "c": "k"}, [
        "A[m] = sum[k] X[m, k] / 6.0",
        "D[m, k] = X[m, k] - A[m]",
        "Q[m] = sum[k] D[m, k] * D[m, k] / 6.0",
        "N[m, k] = D[m, k] / sqrt(Q[m] + 0.01) * g[k] + c[k]",
        "Y[m, n] = sum[k] N[m, k] * B[k, n]",
    ]),
    "sinks": ({"X": "mn", "V": "nh", "s": "m"}, [
        "T[m] = max[n] X[m, n]", "R[m] = max(T[m], s[m])", "P[m, n] = exp(X[m, n] - R[m])",
        "Z[m] = sum[n] P[m, n]", "U[m, h] = sum[n] P[m, n] * V[n, h]",
        "O[m, h] = U[m, h] / (Z[m] + exp(s[m] - R[m]))",
    ]),
    "entropy": ({"X": "mn"}, [
        *SOFTMAX, "W[m, n] = P[m, n] / Z[m]", "H[m] = sum[n] W[m, n] * log(W[m, n])",
    ]),
    "expected_score": ({"X": "mn", "V": "nh"}, [
        "R[m] = max[n] X[m, n]", "Z[m] = sum[n] exp(X[m, n] - R[m])", "L[m] = R[m] + log(Z[m])",
        "E[m, h] = sum[n] exp(X[m, n] - L[m]) * V[n, h]",
    ]),
    "quantised": ({"X": "mn"}, [
        "R[m] = max[n] X[m, n]", "T[m] = sum[n] floor(X[m, n] / (R[m] * R[m] + 1.0) * 127.0)",
    ]),
}  # fmt: skip
CHAINS = {n: LINES[n] for n in ("attention", "softmax_in_place", "layer_norm", "gated",
                                "rms_norm_projection", "log_sum_exp")} | MORE  # fmt: skip


def verdicts(c: Chain) -> dict[tuple[str, str, str], str]:
    """The way chosen for every dependence of a chain whose names have no '_'."""
    found = {(d.target, d.moving, d.axis): "hoist" for d in dependences(c)}
    for r in program(c).rolls:
        key = r.target.partition("_")[0], r.moving.partition("_")[0], r.axis
        assert key in found, key
        found[key] = "roll" if isinstance(r, Roll) else "refused"
    return found


class Writer:
    """Rewrites expressions at random, keeping what they mean."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.pick = draw(st.randoms(use_true_random=False))

    def write(self, e: Expr) -> Expr:
        if isinstance(e, Cast):
            return Cast(self.write(e.arg), e.dtype)
        if not isinstance(e, Call):
            return e
        if e.op == "select":
            return Call("select", (e.args[0], *(self.write(a) for a in e.args[1:])))
        e = Call(e.op, tuple(self.write(a) for a in e.args))
        for change in self.pick.sample(CHANGES, 3):
            if isinstance(e, Call):
                e = change(e)
        return e


def commuted(e: Call) -> Expr:
    return Call(e.op, e.args[::-1]) if e.op in ("add", "mul") else e


def associated(e: Call) -> Expr:
    """(a + b) + c as a + (b + c), and (a * b) * c as a * (b * c)."""
    left = e.args[0]
    if e.op in ("add", "mul") and isinstance(left, Call) and left.op == e.op:
        return Call(e.op, (left.args[0], Call(e.op, (left.args[1], e.args[1]))))
    return e


def added(e: Call) -> Expr:
    return Call("add", (e.args[0], Call("neg", (e.args[1],)))) if e.op == "sub" else e


def reciprocal(e: Call) -> Expr:
    return Call("mul", (e.args[0], Call("div", (Const(1.0), e.args[1])))) if e.op == "div" else e


def moved(e: Call) -> Expr:
    """a / b * c as a * c / b."""
    left = e.args[0]
    if e.op == "mul" and isinstance(left, Call) and left.op == "div":
        return Call("div", (Call("mul", (left.args[0], e.args[1])), left.args[1]))
    return e


def halved(e: Call) -> Expr:
    numbers = ("add", "sub", "mul", "div", "exp")
    return Call("mul", (Call("mul", (e, Const(2.0))), Const(0.5))) if e.op in numbers else e


def to_base_two(e: Call) -> Expr:
    log2e = Const(1.4426950408889634)
    return Call("exp2", (Call("mul", (e.args[0], log2e)),)) if e.op == "exp" else e


def cast(e: Call) -> Expr:
    return Cast(e, "float32") if e.op in ("add", "sub", "mul", "div", "exp") else e


def as_it_is(e: Call) -> Expr:
    return e


CHANGES = [commuted, associated, added, reciprocal, moved, halved, to_base_two, cast, as_it_is]


def copied(c: Chain, out: str) -> Chain:
    """The chain in which what reads a result reads a copy of it."""
    o = c.operator(out)
    copy = Operator(f"{out}i", o.axes, read(out, *o.axes))
    operators: list[Operator] = []
    for x in c.operators:

        def leaf(node: Expr) -> Expr:
            same = isinstance(node, Read) and node.tensor == out
            return Read(copy.out, node.indices) if same else node

        operators.append(x if x is o else replace(x, body=rewrite(x.body, leaf)))
        operators += [copy] if x is o else []
    return replace(c, operators=tuple(operators), tensors=(*c.tensors, Tensor(copy.out, o.axes)))


@st.composite
def rewritten(draw: st.DrawFn) -> tuple[Chain, Chain]:
    c = chain(SIZES, *CHAINS[draw(st.sampled_from(sorted(CHAINS)))])
    writer = Writer(draw)
    new = replace(c, operators=tuple(replace(o, body=writer.write(o.body)) for o in c.operators))
    inner = [o.out for o in c.operators if o.out not in c.outputs]
    if draw(st.booleans()):
        new = copied(new, draw(st.sampled_from(inner)))
    return c, new


@settings(max_examples=30, deadline=None)
@given(rewritten(), st.permutations([*"abcdefz"]), st.integers(0, 10**6))
def test_a_chain_written_otherwise_is_fused_the_same_way(both, letters, pick) -> None:
    plain, new = both
    assume(new != plain)
    axes = dict(zip("bmnkhpc", letters, strict=True))
    tensors = {t.name: f"t{i}" for i, t in enumerate(new.tensors)}
    names = {(tensors[t], tensors[m], axes[a]): way for (t, m, a), way in verdicts(plain).items()}
    other = renamed(new, axes, tensors)
    assert verdicts(other) == names, str(new)
    agree(plain, other, tensors, pick)


def agree(plain: Chain, other: Chain, tensors: dict[str, str], pick: int) -> None:
    x = inputs(plain, pick)
    expected = evaluate(plain, x)
    ready = program(other)
    every = [bind(ready.chain, e) for e in tilings(ready.chain)]
    rng = np.random.default_rng(pick)
    for _ in range(2):
        tiles = {a: int(rng.integers(1, ready.chain.size(a) + 1)) for a in loop_axes(ready.chain)}
        dead = frozenset(a for a, n in tiles.items() if n == ready.chain.size(a))
        schedule = Plan(ready, every[rng.integers(len(every))], dead).schedule(tiles)
        found, _ = interpret(schedule, {tensors[n]: a for n, a in x.items()})
        for name in plain.outputs:
            np.testing.assert_allclose(
                found[tensors[name]], expected[name], rtol=1e-8, atol=1e-8, err_msg=str(other)
            )


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("attention", {"roll"}),
        ("softmax_in_place", {"roll", "hoist"}),
        ("layer_norm", {"hoist"}),
        ("layer_norm_projection", {"hoist"}),
        ("rms_norm_projection", {"hoist"}),
        ("sinks", {"roll"}),
        ("entropy", {"roll", "refused"}),
        ("expected_score", {"roll"}),
        ("quantised", {"refused"}),
        ("gated", set()),
    ],
)
def test_the_ways_that_all_those_share(name: str, ways: set[str]) -> None:
    assert set(verdicts(chain(SIZES, *CHAINS[name])).values()) == ways
