"""What the service is told by its environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mcfuser.errors import InputError
from mcfuser.graph.limits import DEFAULTS, LIMITS, ModelLimits
from service.hosts import host_of

_PREFIX = "MCFUSER_"


def _names(words: object) -> object:
    """Host names parted by commas, as `service.hosts.host_of` gives them."""
    if not isinstance(words, str):
        return words
    found = tuple(host_of(w.strip()) for w in words.split(",") if w.strip())
    if None in found:
        raise ValueError("names of hosts parted by commas are wanted, without ports")
    return found


class ServiceSettings(BaseSettings):
    """Each field is read from MCFUSER_<FIELD>; times are in seconds.

    A model may be as large as each `max_` says (see `ModelLimits`). `inspections` models are looked
    at at once, each with `inspect_memory` bytes beside its own for `inspect_seconds`, after waiting
    `inspect_wait` at most. `data` holds models, modules and, unless `database` says otherwise, the
    SQLite file. `job_memory` is what each process of a compile may take, in bytes: by default three
    quarters of the machine's memory. Where several machines work on one database, `data` is a
    folder that all of them share. `insecure` says that whoever reaches a `host` other than loopback
    may use the server, and `allowed_hosts` (names parted by commas) under which names it answers.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8642, ge=0, le=65535)
    insecure: bool = False
    allowed_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)] = ()
    data: Path = Field(default_factory=lambda: platformdirs.user_data_path("mcfuser"))
    database: SecretStr | None = None
    max_model_bytes: int = Field(default=1 << 30, ge=1)
    max_nodes: int = Field(default=DEFAULTS.nodes, ge=1)
    max_fields: int = Field(default=DEFAULTS.fields, ge=1)
    max_nesting: int = Field(default=DEFAULTS.nesting, ge=1)
    max_rank: int = Field(default=DEFAULTS.rank, ge=1)
    max_elements: int = Field(default=DEFAULTS.elements, ge=1)
    max_total_bytes: int = Field(default=DEFAULTS.total_bytes, ge=1)
    max_constant_bytes: int = Field(default=DEFAULTS.constant_bytes, ge=1)
    inspections: int = Field(default=2, ge=1, le=64)
    inspect_memory: int = Field(default=4 << 30, ge=1 << 28)
    inspect_seconds: float = Field(default=10.0, ge=1)
    inspect_wait: float = Field(default=4.0, gt=0)
    upload_stall: float = Field(default=30.0, gt=0)
    workers: int = Field(default=1, ge=0, le=64)
    worker_name: str = ""
    job_memory: int = Field(default_factory=lambda: _memory() * 3 // 4, ge=1 << 28)
    job_timeout: float = Field(default=3600.0, gt=0)
    grace: float = Field(default=10.0, ge=0)
    lease: float = Field(default=60.0, ge=5)
    poll: float = Field(default=0.25, gt=0)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def database_url(self) -> str:
        if self.database is not None:
            return self.database.get_secret_value()
        return f"sqlite:///{self.data / 'mcfuser.db'}"

    def revealed(self) -> dict[str, Any]:
        """Every field as JSON has it, the database's password included: for another process of
        this server, and for no log. `ServiceSettings(**revealed)` is equal to these settings."""
        database = self.database.get_secret_value() if self.database is not None else None
        return self.model_dump(mode="json") | {"database": database}

    @property
    def model_limits(self) -> ModelLimits:
        """How large a model may be: each `max_` above."""
        return ModelLimits(**{name: getattr(self, f"max_{name}") for name in LIMITS})

    @property
    def blobs(self) -> Path:
        return self.data / "blobs"


def _memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_settings(**given: object) -> ServiceSettings:
    """The environment's settings, save for those given.

    Raises InputError naming the variable that cannot be read.
    """
    try:
        return ServiceSettings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = _PREFIX + str(first["loc"][0]).upper()
        raise InputError(
            f"{name} is '{first['input']}': {first['msg'].lower()}; set it to something else"
        ) from None
