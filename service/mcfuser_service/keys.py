"""The routes of /v1/keys: API keys, for callers with the scope admin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from mcfuser.arguments import quota
from mcfuser.errors import InputError
from mcfuser_db import ApiKey, KeyGrant, NameTaken, Storage
from mcfuser_db.api_keys import api_key, api_keys, make_key, revoke_key
from mcfuser_db.key_text import ID_DIGITS
from mcfuser_service.access import SCOPES, Access, KeyScope
from mcfuser_service.openapi import problems, readable
from mcfuser_service.problems import ProblemError, error
from mcfuser_service.queries import only, printable

Id = Annotated[str, Path(pattern=f"^[0-9a-f]{{{ID_DIGITS}}}$")]
LONGEST_NAME = 100
DEFAULT_SCOPES: tuple[KeyScope, ...] = ("submit", "read")


def _that(parse: Callable[[str], object]) -> AfterValidator:
    """Words that a function can parse; InputError is a ValueError."""

    def check(words: str) -> str:
        parse(words)
        return words

    return AfterValidator(check)


class KeyIn(BaseModel):
    """A key to make. Without a limit it has none; without `expires` it is valid until revoked."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[
        str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(printable)
    ] = Field(description="for people; no other key that is not revoked has it")
    scopes: list[KeyScope] = Field(default=list(DEFAULT_SCOPES), min_length=1, max_length=20)
    rate: Annotated[str, _that(quota.rate)] | None = Field(
        default=None, description="requests by s, m, h or d: 60/m"
    )
    queued: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="jobs in the queue at once"
    )
    disk: Annotated[str, _that(quota.size)] | None = Field(
        default=None, description="of the models and modules that its jobs keep: 10GB"
    )
    expires: Annotated[str, _that(quota.lifetime)] | None = Field(
        default=None, description="12h, 90d or 4w from now"
    )

    @property
    def grant(self) -> KeyGrant:
        rate = quota.rate(self.rate) if self.rate is not None else None
        return KeyGrant(
            name=self.name,
            scopes=tuple(s for s in SCOPES if s in self.scopes),
            requests=rate.count if rate is not None else None,
            period=rate.seconds if rate is not None else None,
            queued=self.queued,
            disk=quota.size(self.disk) if self.disk is not None else None,
            lifetime=quota.lifetime(self.expires) if self.expires is not None else None,
        )


def read_key(fields: Mapping[str, Any]) -> KeyIn:
    """A key to make, of the words of a command. Raises InputError."""
    try:
        return KeyIn.model_validate(fields)
    except ValidationError as failed:
        first = failed.errors()[0]
        where = first["loc"][0] if first["loc"] else "key"
        words = str(first["msg"]).removeprefix("Value error, ")
        raise InputError(f"{where} '{str(first['input'])[:60]}' cannot be used: {words}") from None


class KeyOut(BaseModel):
    """A key without its text, which is kept nowhere. `disk` is in bytes."""

    id: str
    name: str
    scopes: list[str]
    rate: str | None
    queued: int | None
    disk: int | None
    created: datetime
    expires: datetime | None
    revoked: datetime | None
    used: datetime | None = Field(description="when it was last used, to the minute")

    @classmethod
    def fields_of(cls, row: ApiKey) -> dict[str, Any]:
        limited = row.requests is not None and row.period is not None
        plain = ("id", "name", "scopes", "queued", "disk", "created", "expires", "revoked", "used")
        rate = str(quota.Rate(row.requests or 0, row.period or 0.0)) if limited else None
        return {name: getattr(row, name) for name in plain} | {"rate": rate}

    @classmethod
    def of(cls, row: ApiKey) -> KeyOut:
        return cls.model_validate(cls.fields_of(row))


class KeyMade(KeyOut):
    """A key that was just made: `key` is its text, which is shown this once."""

    key: str


def router(store: Storage, access: Access) -> APIRouter:
    """The routes, given the database, and those who must learn that a key was revoked."""
    routes = APIRouter(prefix="/v1/keys", tags=["keys"])

    @routes.post("", status_code=201, responses=problems("name-taken"), dependencies=[only()])
    def make(asked: KeyIn, response: Response) -> KeyMade:
        """Makes a key. Its text is in this answer and nowhere else."""
        try:
            row, text = make_key(store, asked.grant)
        except NameTaken as taken:
            raise error("name-taken", f"{taken}; revoke it or choose another name") from None
        response.headers["Cache-Control"] = "no-store"
        response.headers["Location"] = f"/v1/keys/{row.id}"
        return KeyMade.model_validate({**KeyOut.fields_of(row), "key": text.words})

    @readable(routes, "", responses=problems(), dependencies=[only()])
    def listed() -> list[KeyOut]:
        """All keys, the newest first, with those that were revoked."""
        return [KeyOut.of(row) for row in api_keys(store)]

    @readable(routes, "/{id}", responses=problems("no-such-key"), dependencies=[only()])
    def one(id: Id) -> KeyOut:
        """The key as it is."""
        row = api_key(store, id)
        if row is None:
            raise _missing(id)
        return KeyOut.of(row)

    @routes.delete(
        "/{id}", status_code=204, responses=problems("no-such-key"), dependencies=[only()]
    )
    def revoke(id: Id) -> None:
        """Revokes a key, for ever; its jobs go on."""
        if not revoke_key(store, id) and api_key(store, id) is None:
            raise _missing(id)
        access.forget(id)

    return routes


def _missing(id: str) -> ProblemError:
    return error("no-such-key", f"no key has the id {id}; list them at /v1/keys")
