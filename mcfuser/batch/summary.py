"""The results of a batch for people: a line for each entry, and a page in Markdown."""

from __future__ import annotations

import html
import re

from mcfuser.batch.outcome import EntryState, Outcome
from mcfuser.batch.results import Batch
from mcfuser.batch.run import Done
from mcfuser.batch.zoo import printable

ROWS = 500
"""The largest number of rows of the table: a job's summary on GitHub may have a mebibyte."""
_LONGEST = 300  # characters of a cell

ORDER: tuple[EntryState, ...] = (
    "disagreed", "failed", "slower", "unreachable", "not run", "unchecked", "passed",
)  # fmt: skip
"""The states, what needs a look first."""


def line(done: Done) -> str:
    """An entry in one line: its title, its state, and its error and time or the reason."""
    again = " (unchanged)" if done.unchanged else ""
    return f"{printable(done.entry.title)}: {done.outcome.state}{again}{_details(done.outcome)}"


def _details(outcome: Outcome) -> str:
    if outcome.state != "passed":
        return f": {outcome.reason}"
    error, own = f", error {error_of(outcome)}", outcome.mcfuser_seconds
    if own and outcome.onnxruntime_seconds:
        return f"{error}, {ratio(outcome)} of onnxruntime's time"
    return f"{error}, {own * 1e3:.3f} ms" if own else error


def totals(batch: Batch) -> str:
    """The numbers of a batch in one line."""
    words = [f"{batch.counts[s]} {s}" for s in ORDER if s in batch.counts]
    return f"{', '.join(words)}; {batch.unchanged} of {len(batch.done)} unchanged"


def page(batch: Batch) -> str:
    """The summary in Markdown; failures come first."""
    ordered = sorted(batch.done, key=lambda d: ORDER.index(d.outcome.state))
    rows = [
        "| model | device | shapes | result | error | mcfuser / onnxruntime | mcfuser / baseline "
        "| fused chains |",
        "| --- | --- | --- | --- | ---: | ---: | ---: | ---: |",
        *(_row(d) for d in ordered[:ROWS]),
    ]
    lines = [f"## mcfuser batch: {totals(batch)}", "", *rows, ""]
    if len(ordered) > ROWS:
        lines += [f"{len(ordered) - ROWS} more are in report.json.", ""]
    if batch.interrupted:
        lines += ["The batch was interrupted.", ""]
    lines += [f"{batch.seconds:.1f} s in all, begun {batch.begun:%Y-%m-%d %H:%M:%S %Z}."]
    return "\n".join(lines) + "\n"


def _row(done: Done) -> str:
    o = done.outcome
    state = f"**{o.state}**" if o.bad else o.state
    why = "" if o.reason is None else f": {_cell(o.reason)}"
    result = state + (" (unchanged)" if done.unchanged else "") + why
    fused = f"{o.fused} of {o.chains}" if o.chains else "-"
    cells = (
        _cell(done.entry.name),
        done.entry.device,
        _cell(" ".join(done.entry.variant)),
        result,
        error_of(o),
        ratio(o),
        ratio_to_baseline(o),
        fused,
    )
    return f"| {' | '.join(cells)} |"


def _cell(words: str) -> str:
    """A text as a cell of a Markdown table, with special characters escaped."""
    flat = " ".join(printable(words).split())[:_LONGEST]
    return re.sub(r"([\\`*_\[\]|~#!$])", r"\\\1", html.escape(flat, quote=False))


def error_of(outcome: Outcome) -> str:
    """The error with two digits."""
    return "-" if outcome.error is None else f"{outcome.error:.1e}"


def ratio_to_baseline(outcome: Outcome) -> str:
    """The module's time as a multiple of its baseline's."""
    if not outcome.mcfuser_seconds or not outcome.baseline_seconds:
        return "-"
    return f"{outcome.mcfuser_seconds / outcome.baseline_seconds:.2f}"


def ratio(outcome: Outcome) -> str:
    """The module's time as a multiple of onnxruntime's."""
    if not outcome.mcfuser_seconds or not outcome.onnxruntime_seconds:
        return "-"
    return f"{outcome.mcfuser_seconds / outcome.onnxruntime_seconds:.2f}"
