"""Tuned kernels, which compiled models use them, and the candidates of their searches."""

from __future__ import annotations

import base64
import hashlib
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Integer, Select, delete, func, literal_column, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Session

from mcfuser_db import candidates, kernel_search
from mcfuser_db.database import PAUSE, RACES, Database, insert
from mcfuser_db.models import LONGEST_INDEXED, CandidateBatch, KernelRow, KernelUse
from mcfuser_db.paging import before
from mcfuser_db.relatives import related
from mcfuser_db.tallies import tallies

if TYPE_CHECKING:
    from mcfuser.chain import Chain
    from mcfuser.tune.key import CacheKey
    from mcfuser.tune.related import Relative
    from mcfuser.tune.tried import Tried
    from mcfuser.tune.tuned import Tuned, Use

log = logging.getLogger(__name__)

_MOST_KEYS = 100  # kernels of one chain that are compared with a key
_MOST_REMOVED = 100  # kernels in one transaction
_HELD = 0.03  # seconds that such a transaction is to take at most
_MOST_USES = 500  # in one statement

_Query = TypeVar("_Query", bound=Select[*tuple[Any, ...]])
_Created = InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None]


class KernelStore(Database):
    """Kernels by the digests of their cache keys, in lists, and by the chains that use them."""

    def get(self, key: str) -> Tuned | None:
        """The tuned kernel with a key; None if there is none, or it cannot be read, which is
        logged."""
        document = self.kernel(key)
        if document is None:
            return None
        from mcfuser.tune.record import check
        from mcfuser.tune.tuned import Tuned

        try:
            check(document)
            return Tuned.from_json(document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("kernel %s cannot be read and is tuned again: %r", key, error)
            return None

    def put(self, tuned: Tuned) -> None:
        """Keeps a tuned kernel, in place of one with the same key. The search for it is over: the
        candidates that it measured become one batch."""
        document = tuned.to_json()
        binary = base64.b64decode(str(document.pop("binary")))
        dtype = tuned.chain.tensors[0].dtype
        kernel = KernelRow(
            key=tuned.key, chain=tuned.chain.name, chain_key=tuned.chain.key,
            device=tuned.device, expression=tuned.expression, measured=tuned.measured,
            predicted=tuned.predicted, created=self._now(), made=document["made"],
            document=document, binary=binary, dtype=dtype, seconds=tuned.seconds,
            label=kernel_search.label(tuned.chain.name, tuned.device, dtype),
        )  # fmt: skip
        for _ in range(RACES):
            try:
                with self._write.begin() as session:
                    session.execute(delete(KernelRow).where(KernelRow.key == tuned.key))
                    session.add(kernel)
                    moved = update(KernelUse).where(KernelUse.kernel == tuned.key)
                    session.execute(
                        moved.values(created=kernel.created, device=kernel.device),
                        execution_options={"synchronize_session": False},
                    )
                    candidates.merge(session, tuned.key, self._now())
                return
            except IntegrityError:
                continue  # another process put it in between: now it is there to be replaced
        raise RuntimeError(f"kernel {tuned.key} cannot be kept: others remove it all the time")

    def keys_of(self, chain_key: str) -> Sequence[CacheKey]:
        """The cache keys of the kernels that are kept for a chain, newest first, without those that
        cannot be read."""
        from mcfuser.tune.key import CacheKey

        query = select(KernelRow.made).where(
            KernelRow.chain_key == chain_key, KernelRow.made.is_not(None)
        )
        with self._read() as session:
            newest = query.order_by(KernelRow.created.desc()).limit(_MOST_KEYS)
            documents = session.scalars(newest).all()
        keys: list[CacheKey] = []
        for document in documents:
            with suppress(KeyError, TypeError, ValueError):
                keys.append(CacheKey.from_json(document or {}))
        return keys

    def note(self, uses: Iterable[Use]) -> None:
        """Keeps which kernels a compiled model uses, and where."""
        rows = sorted({(u.chain_key, _place(u.chain), u.kernel) for u in uses})
        with self._write.begin() as session:
            for first in range(0, len(rows), _MOST_USES):
                _add_uses(session, rows[first : first + _MOST_USES])

    def tried(self, key: str) -> Sequence[Tried]:
        """The candidates that were measured under a cache key's digest, each with its last result,
        in the order in which they were first measured."""
        with self._read() as session:
            return candidates.read(session, key)

    def keep_tried(self, made: CacheKey, chain: Chain, device: str, tried: Sequence[Tried]) -> None:
        """Keeps candidates that were measured for a chain on a device."""
        with self._write.begin() as session:
            candidates.add(session, made.digest, chain.key, device, tried, self._now())

    def related(self, chain: Chain, device: str) -> Sequence[Relative]:
        """Chains of the same structure that have kernels which were measured on the device with
        that name, the nearest in extents first, with their best candidates."""
        with self._read() as session:
            return related(session, chain, device)

    def offered(self, key: CacheKey) -> None:
        """A database is asked for its kernels alone: nobody else's are looked up."""

    def kernel(self, key: str) -> dict[str, Any] | None:
        """The document of a kernel with its binary in base64; None if there is none or it is
        damaged."""
        query = select(KernelRow.document, KernelRow.binary).where(KernelRow.key == key)
        with self._read() as session:
            try:
                row = session.execute(query).one_or_none()
            except (ValueError, RecursionError) as error:  # the document is no JSON
                log.warning("kernel %s is damaged: %s", key, error)
                return None
        if row is None:
            return None
        if not isinstance(row.document, dict):
            log.warning("kernel %s is damaged: its document is no object", key)
            return None
        return {**row.document, "binary": base64.b64encode(row.binary).decode()}

    def kernels(
        self, device: str | None = None, chain: str | None = None, limit: int = 50,
        after: str | None = None, key: str | None = None,
    ) -> Sequence[KernelRow]:  # fmt: skip
        """Kernels, newest first, without documents and binaries; `after` is the last one of the
        page before. With a `key`, that kernel alone. `chain` is the name or the key of a chain that
        a kernel was tuned for, or in which a compiled model uses it."""
        unread = kernel_search.UNREAD
        with self._read() as session:
            last = session.get(KernelRow, after, options=unread) if after is not None else None
            if after is not None and last is None:
                return []
            page = _Page(device, key, last, limit)
            query = select(KernelRow).options(*unread)
            if chain is None:
                query = page.of(query)
            else:
                query = query.where(KernelRow.key.in_(_keys_of(session, chain, page)))
            newest = query.order_by(KernelRow.created.desc(), KernelRow.key.desc())
            return session.scalars(newest).all()

    def find_kernels(
        self, asked: kernel_search.KernelQuery, limit: int = 50, after: str | None = None
    ) -> kernel_search.FoundKernels:
        """A part of the kernels that are asked for (mcfuser_db.kernel_search.find)."""
        with self._read() as session:
            return kernel_search.find(session, asked, limit, after)

    def kernels_of(self, keys: Sequence[str]) -> Sequence[KernelRow]:
        """The kernels with these keys, in their order, without documents and binaries."""
        with self._read() as session:
            return kernel_search.rows_of(session, keys)

    def chain_of(self, key: str) -> dict[str, Any] | None:
        """The document of a kernel's chain; None if there is none or it is damaged."""
        with self._read() as session:
            return kernel_search.chain_of(session, key)

    def keys_like(self, start: str, limit: int = 2) -> Sequence[str]:
        """At most `limit` keys of kernels that begin with `start`."""
        # no digit comes after f: the range finds in the index what is then compared
        near = (KernelRow.key >= start, KernelRow.key < start + "g")
        exact = KernelRow.key.startswith(start, autoescape=True)
        query = select(KernelRow.key).where(*near, exact)
        with self._read() as session:
            return session.scalars(query.order_by(KernelRow.key).limit(limit)).all()

    def unfinished(self, device: str | None = None) -> Sequence[candidates.Unfinished]:
        """The searches that have kept candidates and no kernel: they were interrupted."""
        with self._read() as session:
            return candidates.unfinished(session, device)

    def renew_kernel(self, old: str, tuned: Tuned) -> None:
        """Keeps a kernel that was made anew from the one with the key `old`, in place of it: also
        where compiled models use that."""
        self.put(tuned)
        if tuned.key == old:
            return
        with self._write.begin() as session:
            uses = session.scalars(select(KernelUse).where(KernelUse.kernel == old)).all()
            _add_uses(session, [(use.chain_key, use.place, tuned.key) for use in uses])
        self.prune([old])

    def prune(self, keys: Iterable[str]) -> int:
        """Removes kernels, where compiled models use them, and the candidates of their searches;
        gives the number of kernels. Others may write in between."""
        removed, left, some = 0, list(keys), 1
        while left:
            begun = time.monotonic()
            with self._write.begin() as session:
                removed += _remove(session, left[:some])
            taken = time.monotonic() - begun
            left = left[some:]
            some = _next_portion(some, taken)
            if left:
                time.sleep(max(PAUSE, taken))  # as long for others
        return removed

    def kernel_count(self) -> int:
        with self._read() as session:
            return tallies(session).get("kernels", 0)


def _remove(session: Session, keys: Sequence[str]) -> int:
    """Removes kernels, with their uses and candidates; gives the number of kernels."""
    session.execute(delete(CandidateBatch).where(CandidateBatch.key.in_(keys)))
    session.execute(delete(KernelUse).where(KernelUse.kernel.in_(keys)))
    rows = delete(KernelRow).where(KernelRow.key.in_(keys)).returning(KernelRow.key)
    return len(session.scalars(rows).all())


def _next_portion(removed: int, seconds: float) -> int:
    """How many kernels the next transaction removes, where the last one took so long for so many:
    on SQLite, nobody else writes meanwhile."""
    if seconds > _HELD:
        return max(1, removed // 2)
    return min(_MOST_REMOVED, 2 * removed) if seconds < _HELD / 2 else removed


def _place(chain: str) -> str:
    """The hash of a chain's name, which may be of any length."""
    return hashlib.sha256(chain.encode(errors="surrogatepass")).hexdigest()


def _add_uses(session: Session, rows: Sequence[tuple[str, str, str]]) -> None:
    """Adds those uses (chain key, place, kernel) that are not there yet."""
    kernels = {kernel for _, _, kernel in rows}
    kept = select(KernelRow.key, KernelRow.created, KernelRow.device)
    found = {row.key: row for row in session.execute(kept.where(KernelRow.key.in_(kernels)))}
    values = [
        {
            "chain_key": chain_key, "place": place, "kernel": kernel,
            "created": found[kernel].created if kernel in found else None,
            "device": found[kernel].device if kernel in found else None,
        }
        for chain_key, place, kernel in rows
    ]  # fmt: skip
    if values:
        session.execute(insert(session, KernelUse).on_conflict_do_nothing(), values)


@dataclass(frozen=True, slots=True)
class _Page:
    """Which kernels a list has: of a device, with a key, and after the last one of the page before,
    where these are given; at most `limit`."""

    device: str | None
    key: str | None
    last: KernelRow | None
    limit: int

    def of(self, query: _Query, table: type[KernelRow] | type[KernelUse] = KernelRow) -> _Query:
        """The page of a query of a table, the newest kernels first."""
        created: _Created = table.created
        key = table.key if issubclass(table, KernelRow) else table.kernel
        if self.device is not None:
            query = query.where(table.device == self.device)
        if self.key is not None:
            query = query.where(key == self.key)
        if self.last is not None:
            query = query.where(before(created, self.last.created, key, self.last.key))
        return query.order_by(created.desc(), key.desc()).limit(self.limit)


def _keys_of(session: Session, chain: str, page: _Page) -> Sequence[str]:
    """The keys of a page of the kernels that were tuned for a chain, or are used in it.

    Each way to know the chain is a query of its own, which reads no more than a page in its index.
    """
    kernels = select(KernelRow.created, KernelRow.key)
    # literals: SQLite uses an index of an expression for no other
    numbers = (literal_column("1", Integer), literal_column(str(LONGEST_INDEXED), Integer))
    named = kernels.where(func.substr(KernelRow.chain, *numbers) == chain[:LONGEST_INDEXED])
    if len(chain) >= LONGEST_INDEXED:
        # SQLite would put the value of a bare column in its place in the expression
        named = named.where(KernelRow.chain + "" == chain)
    ways: list[Select[*tuple[Any, ...]]] = [
        page.of(named),
        page.of(kernels.where(KernelRow.chain_key == chain)),
    ]
    uses = select(KernelUse.created, KernelUse.kernel).where(KernelUse.created.is_not(None))
    for used in (KernelUse.place == _place(chain), KernelUse.chain_key == chain):
        ways.append(page.of(uses.where(used).distinct(), KernelUse))
    found: set[tuple[datetime, str]] = {
        (created, key) for way in ways for created, key in session.execute(way)
    }
    return [key for _, key in sorted(found, reverse=True)[: page.limit]]
