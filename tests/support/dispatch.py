"""Where the source chooses by the kind of a value: chains of isinstance tests, and match.

A dispatch is a match, an if with its elifs, or ifs one after the other that all leave, whose
branches test one value for different members of a union.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

End = Literal["assert_never", "default", "nothing"]
"""What a value meets that no branch names: assert_never, other statements, or nothing at all."""
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


@dataclass(frozen=True)
class Dispatch:
    """Where it is, the members that each of its branches names, and how it ends."""

    line: int
    branches: tuple[frozenset[str], ...]
    end: End

    @property
    def named(self) -> frozenset[str]:
        return frozenset().union(*self.branches)


def unions(path: Path, *names: str) -> Mapping[str, frozenset[str]]:
    """The members of the unions of a module, `Name = A | B`; one may be a member of another."""
    assigned = {
        target.id: node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }

    def members(node: ast.expr) -> frozenset[str]:
        if isinstance(node, ast.BinOp):
            return members(node.left) | members(node.right)
        assert isinstance(node, ast.Name), ast.unparse(node)
        return members(assigned[node.id]) if node.id in assigned else frozenset({node.id})

    return {name: members(assigned[name]) for name in names}


def dispatches(tree: ast.AST, aliases: Mapping[str, frozenset[str]]) -> Iterator[Dispatch]:
    """Every dispatch of a module; `aliases` are names that stand for several types."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            body = getattr(node, field, None)
            if isinstance(body, list):
                nested = field == "orelse" and isinstance(node, ast.If) and _elif(node) is not None
                if not nested:  # an elif belongs to the if before it
                    yield from _of_statements(body, aliases)


def _of_statements(
    body: Sequence[ast.stmt], aliases: Mapping[str, frozenset[str]]
) -> Iterator[Dispatch]:
    at = 0
    while at < len(body):
        statement = body[at]
        if isinstance(statement, ast.Match):
            yield _of_match(statement, body[at + 1 :], aliases)
        if not isinstance(statement, ast.If):
            at += 1
            continue
        begun, branches, subject = at, list[frozenset[str]](), None
        while at < len(body) and isinstance(part := body[at], ast.If):
            asked = _chain(part, aliases)
            if asked is None or subject not in (None, asked[0]):
                break
            subject, found, end = asked
            branches += found
            at += 1
            if end != "nothing" or not _leaves(part):
                break
        else:
            end = "nothing"
        if subject is None:
            at += 1
            continue
        if end == "nothing" and all(map(_leaves, body[begun:at])):
            end = _rest(body[at:])
        yield Dispatch(statement.lineno, tuple(branches), end)


def _chain(
    node: ast.If, aliases: Mapping[str, frozenset[str]]
) -> tuple[str, list[frozenset[str]], End] | None:
    """The value that an if and its elifs test, what each names, and how they end; None where they
    test something else."""
    subject, branches = None, []
    part: ast.If | None = node
    while part is not None:
        test, never = part.test, False
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, never = test.operand, _rest(part.body) == "assert_never"
        asked = _asked(test, aliases)
        if asked is None or subject not in (None, asked[0]) or never != (test is not part.test):
            return (subject, branches, "default") if subject is not None else None
        subject = asked[0]
        branches.append(asked[1])
        if never:  # `if not isinstance(x, Last): assert_never(x)`, and then what is done of Last
            return subject, branches, "assert_never"
        last, part = part, _elif(part)
    assert subject is not None
    return subject, branches, _rest(last.orelse)


def _of_match(
    node: ast.Match, after: Sequence[ast.stmt], aliases: Mapping[str, frozenset[str]]
) -> Dispatch:
    branches, end = [], "nothing"
    for case in node.cases:
        named = _patterns(case.pattern, aliases)
        if named is None:
            end = _rest(case.body) if case.guard is None else end
        elif case.guard is None:
            branches.append(named)
    leave = all(isinstance(case.body[-1], _LEAVES) for case in node.cases)
    if end == "nothing" and leave:
        end = _rest(after)
    return Dispatch(node.lineno, tuple(branches), end)


def _patterns(pattern: ast.pattern, aliases: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    """The types that a pattern names; None for one that matches whatever comes."""
    if isinstance(pattern, ast.MatchAs):
        return _patterns(pattern.pattern, aliases) if pattern.pattern is not None else None
    if isinstance(pattern, ast.MatchOr):
        return frozenset().union(*(_patterns(p, aliases) or () for p in pattern.patterns))
    return _types(pattern.cls, aliases) if isinstance(pattern, ast.MatchClass) else frozenset()


def _asked(
    test: ast.expr, aliases: Mapping[str, frozenset[str]]
) -> tuple[str, frozenset[str]] | None:
    """The value that isinstance is asked of, and the types."""
    if (
        isinstance(test, ast.Call)
        and isinstance(test.func, ast.Name)
        and test.func.id == "isinstance"
    ):
        return ast.unparse(test.args[0]), _types(test.args[1], aliases)
    return None


def _types(node: ast.expr, aliases: Mapping[str, frozenset[str]]) -> frozenset[str]:
    if isinstance(node, ast.Tuple):
        return frozenset().union(*(_types(e, aliases) for e in node.elts))
    if isinstance(node, ast.BinOp):
        return _types(node.left, aliases) | _types(node.right, aliases)
    name = ast.unparse(node).rpartition(".")[2]
    return aliases.get(name, frozenset({name}))


def _elif(node: ast.If) -> ast.If | None:
    """The elif of an if."""
    only = node.orelse[0] if len(node.orelse) == 1 else None
    return only if isinstance(only, ast.If) else None


def _leaves(node: ast.stmt) -> bool:
    """No branch of an if goes on with what follows it."""
    part: ast.If | None = node if isinstance(node, ast.If) else None
    while part is not None:
        if not isinstance(part.body[-1], _LEAVES):
            return False
        part = _elif(part)
    return True


def _rest(body: Sequence[ast.stmt]) -> End:
    if not body:
        return "nothing"
    never = body[0]
    if (
        isinstance(never, ast.Expr)
        and isinstance(never.value, ast.Call)
        and ast.unparse(never.value.func).rpartition(".")[2] == "assert_never"
    ):
        return "assert_never"
    return "default"
