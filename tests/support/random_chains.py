"""Random chains: one to three products in a row, with what models put between them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

from mcfuser.chain import Chain, from_json

LINKS = {
    "none": [],
    "scale": ["{o} = {i} * {c}"],
    "relu": ["{o} = max({i}, 0.0)"],
    "bias and tanh": ["{o} = tanh({i} + bias{j}[{n}])"],
    "gelu": ["{o} = 0.5 * {i} * (1.0 + erf({i} * 0.7071))"],
    "cap": ["{o} = {c} * tanh({i} / {c}) + 0.01"],
    "from indices": ["{o} = {i} - {c} * ({n} - m)"],
    "mask": ["{o} = {i} * mask{j}[m, {n}]"],
    "where": ["{o} = select({n} <= m + {d}, {i}, -0.25)"],
    "softmax": [
        "x{j} = {i} * {c} + mask{j}[m, {n}]",
        "r{j}[{k}] = max[{n}] x{j}{where}",
        "e{j} = exp(x{j} - r{j}[{k}])",
        "z{j}[{k}] = sum[{n}] e{j}{where}",
        "{o} = e{j} / z{j}[{k}]",
    ],
    "scores": [
        "x{j} = {i} * {c}",
        "r{j}[{k}] = max[{n}] x{j}{where}",
        "e{j} = exp(x{j} - r{j}[{k}])",
        "z{j}[{k}] = sum[{n}] e{j}{where}",
        "{o} = e{j} / z{j}[{k}]",
    ],
    "weights": [
        "r{j}[{k}] = max[{n}] {i}",
        "{o} = exp2(({i} - r{j}[{k}]) * {c})",
    ],
    "norm": [
        "q{j}[{k}] = sum[{n}] {i} * {i}{where}",
        "{o} = {i} / sqrt(q{j}[{k}] + 0.5) * gain{j}[{n}]",
    ],
    "share": ["q{j}[{k}] = sum[{n}] abs({i}){where}", "{o} = {i} / (q{j}[{k}] + 1.0)"],
    "gate": [
        "g{j}[{k}, {n}] = sum[{p}] {left} * W{j}{right}",
        "{o} = {i} / (1.0 + exp(-{i})) * g{j}[{k}, {n}]",
    ],
}
"""Lines by link: {i} becomes {o} along {n}; {k} are the other axes that are kept, {p} the axis of
the product before, whose operands are {left} and W{right}."""

ROLLING = ("softmax", "scores", "weights")
TAILS = {
    "none": [],
    "bias": ["y = {i} + tail[{n}]"],
    "residual": ["y = {i} + tail[m, {n}]"],
    "activation": ["y = max({i}, 0.0) - 0.5 * {i}"],
}
WHERE = {"": "", "causal": "{n} <= m", "window": "{n} <= m + 2 and m - {n} < 5", "never": "{n} < 0"}


@dataclass
class _Drawn:
    lines: list[str] = field(default_factory=list)
    shapes: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    chain: Chain
    products: int
    rolling: bool


@st.composite
def cases(draw: st.DrawFn, high: int = 24) -> Case:
    """A chain with extents from 1 to `high`, now and then to 70."""
    products = draw(st.sampled_from([1, 2, 2, 3, 3, 3]))
    batch = draw(st.sampled_from(["", "", "b", "g"]))
    axes = ["m", *"knhp"[: products + 1]]
    top = draw(st.sampled_from([high, high, high, 70])) if products < 3 else high
    extents = {a: draw(st.integers(1, top)) for a in axes}
    extents |= {a: draw(st.integers(1, 2)) for a in ("b" + batch if batch == "g" else batch)}
    lead = {"": "", "b": "b, ", "g": "b, g, "}[batch]
    weights = draw(st.booleans()) if batch else False  # the right operands have batch axes, too
    d = _Drawn()
    row, right_lead = f"{lead}m", "b, " if weights else ""
    first, used = axes[1], []
    d.shapes["A"] = f"{lead}m, {first}".split(", ")
    here = f"A[{lead}m, {first}]"
    operands, domain = ("", ""), ""
    for j in range(products + 1):
        n = axes[j + 1]
        if j:
            p = axes[j]
            right = f"[{right_lead}{p}, {n}]"
            d.shapes[f"B{j}"] = right[1:-1].split(", ")
            operands = (here, right)
            d.lines.append(f"C{j}[{row}, {n}] = sum[{p}] {here} * B{j}{right}{domain}")
            here = f"C{j}[{row}, {n}]"
        if j < products:
            links = [x for x in LINKS if x != "gate" or j]
            used.append(draw(st.sampled_from([*links, *ROLLING * 4])))
            domain = _where(draw, used[-1], n)
            here = _link(draw, d, used[-1], here, j, row, n, axes[j], operands, domain)
            domain = domain if used[-1] in ("softmax", "scores") else ""
    _tail(draw, d, here, row, axes[products + 1])
    return Case(_chain(extents, d), products, any(x in ROLLING for x in used))


def _where(draw: st.DrawFn, link: str, n: str) -> str:
    if not any("{where}" in line for line in LINKS[link]):
        return ""
    condition = WHERE[draw(st.sampled_from([*WHERE, ""]))].format(n=n)
    return f" where {condition}" if condition else ""


def _link(
    draw: st.DrawFn, d: _Drawn, link: str, here: str, j: int, row: str, n: str, p: str,
    operands: tuple[str, str], domain: str,
) -> str:  # fmt: skip
    words = {
        "i": here, "o": f"T{j}[{row}, {n}]", "j": str(j), "k": row, "n": n, "p": p,
        "c": draw(st.sampled_from(["0.5", "1.25", "3.0"])), "d": draw(st.sampled_from("02")),
        "where": domain,
        "left": operands[0], "right": operands[1],
    }  # fmt: skip
    if not LINKS[link]:
        return here
    for line in LINKS[link]:
        text = line.format(**words)
        for name in ("x", "e") if link in ("softmax", "scores") else ():
            text = text.replace(f"{name}{j}", f"{name}{j}[{row}, {n}]")
        d.lines.append(text)
    shapes = {"bias": [n], "gain": [n], "mask": ["m", n], "W": operands[1][1:-1].split(", ")}
    for name, shape in shapes.items():
        if any(f"{name}{j}[" in x for x in d.lines[-len(LINKS[link]) :]):
            d.shapes[f"{name}{j}"] = shape
    return words["o"]


def _tail(draw: st.DrawFn, d: _Drawn, here: str, row: str, n: str) -> None:
    kind = draw(st.sampled_from(sorted(TAILS)))
    for line in TAILS[kind]:
        d.lines.append(line.format(i=here, n=n).replace("y =", f"y[{row}, {n}] ="))
        if "tail[" in line:
            d.shapes["tail"] = ["m", n] if "tail[m" in line else [n]


def _chain(extents: dict[str, int], d: _Drawn) -> Chain:
    return from_json(
        {
            "axes": extents,
            "tensors": {t: {"shape": shape} for t, shape in d.shapes.items()},
            "operators": d.lines,
        }
    )
