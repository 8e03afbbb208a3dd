"""The results of a batch as one HTML file: nothing is loaded from elsewhere, and every text from a
model is escaped.

A table has all entries; below it each has its chains, the time of each kernel, and what was left
out. Scripts sort and filter the table; all else works without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from mcfuser.batch.compilation import ShownChain, ShownCompilation, ShownKernel, read_compilation
from mcfuser.batch.results import Batch
from mcfuser.batch.run import Done
from mcfuser.batch.summary import ORDER, error_of, ratio, ratio_to_baseline, totals
from mcfuser.batch.zoo import printable
from mcfuser.revision import revision

DETAILED = 500
"""The largest number of entries whose chains are shown: those that need a look come first."""
_BARS = 60  # kernels of an entry that are shown, the slowest first

_COLUMNS = (
    ("model", "text"), ("device", "text"), ("shapes", "text"), ("state", "text"),
    ("error", "number"), ("time", "number"), ("/ onnxruntime", "number"),
    ("/ baseline", "number"), ("fused", "text"),
)  # fmt: skip


def web_page(batch: Batch, folder: Path) -> str:
    """The page; `folder` is the batch's, in which the entries' folders and this page lie."""
    ordered = sorted(batch.done, key=lambda d: ORDER.index(d.outcome.state))
    detailed = ordered[:DETAILED]
    numbers = {d.entry.folder: n for n, d in enumerate(detailed, 1)}
    parts = [
        _head(batch),
        _table(ordered, numbers),
        "<h2>Entries</h2>",
        *(_details(d, numbers[d.entry.folder], folder) for d in detailed),
    ]
    if len(ordered) > DETAILED:
        parts.append(f"<p>{len(ordered) - DETAILED} more are in report.json.</p>")
    body = "\n".join(parts)
    style, script = _asset("web.css"), _asset("web.js")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
        f"<title>mcfuser batch: {_text(totals(batch))}</title>\n<style>\n{style}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return files("mcfuser.batch").joinpath(name).read_text()


def _text(words: str) -> str:
    """A text with all that HTML gives a meaning to escaped."""
    return escape(printable(words), quote=True)


def _head(batch: Batch) -> str:
    interrupted = "<p>The batch was interrupted.</p>" if batch.interrupted else ""
    return (
        f"<h1>mcfuser batch</h1>\n<p><strong>{_text(totals(batch))}</strong></p>\n"
        f"<p>Zoo {_text(batch.zoo)}, begun {batch.begun:%Y-%m-%d %H:%M:%S %Z}, "
        f"{batch.seconds:.1f} s, exit status {batch.status}, code {_text(revision())}.</p>\n"
        f"{interrupted}"
    )


# --- the table ------------------------------------------------------------------------------


def _table(done: Iterable[Done], numbers: dict[str, int]) -> str:
    done = list(done)
    states = [s for s in ORDER if any(d.outcome.state == s for d in done)]
    boxes = " ".join(
        f'<label><input type="checkbox" class="filter" value="{s}" checked> {s}</label>'
        for s in states
    )
    heads = "".join(
        f'<th scope="col" data-kind="{kind}"><button type="button">{_text(name)}</button></th>'
        for name, kind in _COLUMNS
    )
    rows = "\n".join(_row(d, numbers.get(d.entry.folder)) for d in done)
    return (
        f'<fieldset class="filters"><legend>Show</legend>{boxes}</fieldset>\n'
        '<div class="scroll" tabindex="0" role="region" aria-label="All entries">\n'
        f'<table id="entries"><thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>\n'
        "</div>"
    )


def _row(done: Done, number: int | None) -> str:
    o, name = done.outcome, _text(done.entry.name)
    model = name if number is None else f'<a href="#e{number}">{name}</a>'
    again = " (unchanged)" if done.unchanged else ""
    fused = f"{o.fused} of {o.chains}" if o.chains else "-"
    seconds = o.mcfuser_seconds
    cells = (
        f'<th scope="row">{model}</th>',
        _cell(done.entry.device),
        _cell(" ".join(done.entry.variant)),
        f'<td><span class="state {_class(o.state)}">{o.state}</span>{again}</td>',
        _number(error_of(o), o.error),
        _number(_time(seconds), seconds),
        *(_number(r, None if r == "-" else float(r)) for r in (ratio(o), ratio_to_baseline(o))),
        _cell(fused),
    )
    return f'<tr data-state="{o.state}">{"".join(cells)}</tr>'


def _class(state: str) -> str:
    return state.replace(" ", "-")


def _cell(words: str) -> str:
    return f"<td>{_text(words)}</td>"


def _number(words: str, value: float | None) -> str:
    sorted_by = "" if value is None else f' data-value="{value!r}"'
    return f'<td class="number"{sorted_by}>{_text(words)}</td>'


def _time(seconds: float | None) -> str:
    """A time with its unit."""
    if seconds is None:
        return "-"
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms"


# --- one entry ------------------------------------------------------------------------------


def _details(done: Done, number: int, folder: Path) -> str:
    o = done.outcome
    there = folder / "entries" / done.entry.folder
    base = f"entries/{quote(done.entry.folder)}"
    links = " ".join(
        f'<a href="{base}/{name}">{name}</a>'
        for name in ("log.txt", "report.json", "module.so")
        if (there / name).is_file()
    )
    reason = f"<p>{_text(o.reason)}</p>\n" if o.reason else ""
    listed = f'<p class="links">{links}</p>\n' if links else ""
    compilation = read_compilation(there)
    shown = "".join(_compilation(compilation)) if compilation is not None else ""
    opened = " open" if o.bad else ""
    return (
        f'<details id="e{number}"{opened}>\n<summary><span class="state {_class(o.state)}">'
        f"{o.state}</span> {_text(done.entry.title)}</summary>\n{reason}{listed}{shown}</details>"
    )


def _compilation(compilation: ShownCompilation) -> Iterator[str]:
    yield from _kernels(compilation)
    if compilation.chains:
        rows = "\n".join(map(_chain, compilation.chains))
        yield (
            '<h3>Chains</h3>\n<div class="scroll" tabindex="0" role="region" aria-label="Chains">'
            '<table><thead><tr><th scope="col">chain</th><th scope="col">operators</th>'
            '<th scope="col">kernels</th><th scope="col">result</th></tr></thead>\n'
            f"<tbody>\n{rows}\n</tbody></table></div>\n"
        )
    if compilation.left:
        items = "\n".join(
            f"<li>{_text(reason)}: {_text(', '.join(p.name for p in products))}</li>"
            for reason, products in compilation.left.items()
        )
        yield f"<h3>Products that share no kernel, and why</h3>\n<ul>\n{items}\n</ul>\n"


def _kernels(compilation: ShownCompilation) -> Iterator[str]:
    """The time of each kernel in all its places, as bars, the longest first."""
    every = [
        (max(1, len(c.places)) * k.seconds, c, k)
        for c in compilation.chains
        for k in c.kernels
        if k.seconds is not None
    ]
    every.sort(key=lambda found: -found[0])
    if not every:
        return
    longest, whole = every[0][0] or 1.0, sum(seconds for seconds, _, _ in every) or 1.0
    rows = "\n".join(_bar(s, c, k, s / longest, s / whole) for s, c, k in every[:_BARS])
    more = f"<p>{len(every) - _BARS} shorter ones.</p>\n" if len(every) > _BARS else ""
    yield (
        f"<h3>Time by kernel</h3>\n<p>Of {_time(whole)} in fused chains, times "
        f'{_text(compilation.times)}.</p>\n<ol class="bars">\n{rows}\n</ol>\n{more}'
    )


def _bar(seconds: float, chain: ShownChain, kernel: ShownKernel, width: float, part: float) -> str:
    count = len(chain.places)
    places = f" in {count} places" if count > 1 else ""
    words = f"{chain.name}{places}: {kernel.expression} {_words(kernel.tiles)}"
    return (
        f'<li><span class="label">{_text(words)}</span> '
        f'<span class="bar" style="--part:{width:.4f}"></span> '
        f'<span class="number">{_time(seconds)}, {part:.0%}</span></li>'
    )


def _chain(chain: ShownChain) -> str:
    kernels = "<br>".join(
        _text(f"{k.expression} {_words(k.tiles)} {_words(k.lowering)}") for k in chain.kernels
    )
    operators = "<br>".join(map(_text, chain.operators))
    result = ("fused, " if chain.fused else "") + chain.reason
    return (
        f'<tr><th scope="row">{_text(chain.name)}</th><td class="code">{operators}</td>'
        f'<td class="code">{kernels or "TVM&#39;s"}</td><td>{_text(result)}</td></tr>'
    )


def _words(values: Mapping[str, object]) -> str:
    return " ".join(f"{n}={v}" for n, v in values.items())
