"""The settings of the service, read from the environment."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mcfuser.errors import InputError
from mcfuser.graph.limits import DEFAULTS, LIMITS, ModelLimits
from mcfuser_service.hosts import host_of

_PREFIX = "MCFUSER_"
_SECRETS = ("database", "webhook_secret")


def _names(words: object) -> object:
    """Host names, separated by commas, normalized by service.hosts.host_of."""
    if not isinstance(words, str):
        return words
    found = tuple(host_of(w.strip()) for w in words.split(",") if w.strip())
    if None in found:
        raise ValueError("names of hosts parted by commas are wanted, without ports")
    return found


def _targets(words: object) -> object:
    """Hosts, each with or without a port, separated by commas, in lower case."""
    if not isinstance(words, str):
        return words
    found = []
    for word in (w.strip() for w in words.split(",") if w.strip()):
        name, colon, port = word.rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()) or name.endswith(":"):
            name, port = word, ""
        host = host_of(name)
        if not host or (port and not 0 < int(port) < 65536):
            raise ValueError("hosts parted by commas are wanted, as ci.example or ci.example:8080")
        host = f"[{host}]" if ":" in host else host
        found.append(f"{host}:{int(port)}" if port else host)
    return tuple(found)


def _signing(secret: SecretStr | None) -> SecretStr | None:
    """A secret as Standard Webhooks has it."""
    if secret is not None:
        _key(secret)
    return secret


def _key(secret: SecretStr) -> bytes:
    """The bytes of a secret; raises ValueError where it is malformed."""
    head, _, rest = secret.get_secret_value().partition("_")
    try:
        key = base64.b64decode(rest, validate=True)
    except ValueError:
        key = b""
    if head != "whsec" or not 24 <= len(key) <= 64:
        raise ValueError("whsec_ and 24 to 64 bytes in base64 are wanted")
    return key


@dataclass(frozen=True)
class Team:
    """Where a team's cache is (`where`: a folder, a URL, oci://, or nothing at all), the API `key`
    for a server, and the `folder` in which what was pulled from a registry is kept."""

    where: str = ""
    key: str | None = field(default=None, repr=False)
    folder: Path = Path("team")

    def to_json(self) -> dict[str, str | None]:
        return {"where": self.where, "key": self.key, "folder": str(self.folder)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> Team:
        return Team(document["where"], document["key"], Path(document["folder"]))


class ServiceSettings(BaseSettings):
    """The settings. Each field is read from MCFUSER_<FIELD>; times are in seconds.

    Each `max_` limits the size of models (ModelLimits) and, `max_archive_bytes`, of posted archives
    before they are unpacked. `inspections` models are checked at once,
    each for `inspect_seconds` with `inspect_memory` bytes besides its own, after waiting at most
    `inspect_wait`. `data` is the folder for models, modules and, unless `database` is given, the
    SQLite file; machines that share a database must share it. Workers that the server starts are
    nicer than the server by `niceness`. `job_memory` is the memory of each process of a
    compilation, in bytes: by default three quarters of the machine's. Requests to a
    `host` other than loopback need an API key, unless the server is `insecure`; those to loopback
    with `require_key`. `allowed_hosts` (separated by commas) are the names for which it answers.
    `team_cache` is the folder, the URL or the OCI reference of a cache from which schedules are
    taken (service.team), or empty; a server there is sent `team_cache_key`. A worker that has had
    no job for `refresh_after` seconds measures stale kernels again (service.idle); 0 is never. An
    Idempotency-Key is kept for `idempotency_keep`. The results of a job are kept for `keep_age`
    after its end, and models and modules of `keep_bytes` in all; a job whose results were removed
    for `keep_rows` after that. Webhooks are signed with
    `webhook_secret` (whsec_ and base64), and only `webhook_hosts` (names, perhaps with ports,
    separated by commas) are told anything. Modules are signed with the private key in the file
    `signing_key`; where it is encrypted, the first line of `signing_passphrase_file` decrypts it.
    """

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8642, ge=0, le=65535)
    insecure: bool = False
    require_key: bool = False
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
    max_weight_bytes: int = Field(default=DEFAULTS.weight_bytes, ge=1)
    max_archive_bytes: int = Field(default=1 << 32, ge=1)
    max_unpacked_bytes: int = Field(default=DEFAULTS.unpacked_bytes, ge=1)
    max_members: int = Field(default=DEFAULTS.members, ge=1)
    inspections: int = Field(default=2, ge=1, le=64)
    inspect_memory: int = Field(default=4 << 30, ge=1 << 28)
    inspect_seconds: float = Field(default=10.0, ge=1)
    inspect_wait: float = Field(default=4.0, gt=0)
    upload_stall: float = Field(default=30.0, gt=0)
    idempotency_keep: float = Field(default=86400.0, ge=60)
    keep_age: float | None = Field(default=None, gt=0)
    keep_bytes: int | None = Field(default=None, ge=0)
    keep_rows: float = Field(default=2592000.0, gt=0)
    webhook_secret: Annotated[SecretStr | None, AfterValidator(_signing)] = None
    webhook_hosts: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_targets)] = ()
    signing_key: Path | None = None
    signing_passphrase_file: Path | None = None
    workers: int = Field(default=1, ge=0, le=64)
    niceness: int = Field(default=10, ge=0, le=19)
    worker_name: str = ""
    job_memory: int = Field(default_factory=lambda: _memory() * 3 // 4, ge=1 << 28)
    job_timeout: float = Field(default=3600.0, gt=0)
    grace: float = Field(default=10.0, ge=0)
    lease: float = Field(default=60.0, ge=5)
    poll: float = Field(default=0.25, gt=0)
    team_cache: str = ""
    team_cache_key: SecretStr | None = None
    refresh_after: float = Field(default=300.0, ge=0)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @property
    def database_url(self) -> str:
        if self.database is not None:
            return self.database.get_secret_value()
        return f"sqlite:///{self.data / 'mcfuser.db'}"

    @property
    def webhook_key(self) -> bytes | None:
        """The bytes that webhooks are signed with; None where there is no secret."""
        return _key(self.webhook_secret) if self.webhook_secret is not None else None

    def revealed(self) -> dict[str, Any]:
        """All fields as JSON values, for other processes of this server; never log them, since the
        database's password is among them. `ServiceSettings(**revealed)` equals these settings."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        secrets = {n: v.get_secret_value() for n, v in fields.items() if isinstance(v, SecretStr)}
        return self.model_dump(mode="json") | secrets

    @property
    def model_limits(self) -> ModelLimits:
        """The limits of a model's size, from the `max_` fields."""
        return ModelLimits(**{name: getattr(self, f"max_{name}") for name in LIMITS})

    @property
    def team(self) -> Team:
        """The team's cache; what is pulled for it is kept under `data`."""
        words = self.team_cache_key.get_secret_value().strip() if self.team_cache_key else ""
        return Team(self.team_cache, words or None, self.data / "team")

    @property
    def blobs(self) -> Path:
        return self.data / "blobs"


class ClientSettings(BaseSettings):
    """What a client of a server is given by the environment: MCFUSER_API_KEY."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True)

    api_key: SecretStr | None = None


def read_api_key() -> str | None:
    """The key that requests to a server are sent with, None where there is none."""
    given = ClientSettings().api_key
    words = given.get_secret_value().strip() if given is not None else ""
    return words or None


def docker_config() -> Path:
    """The file in which Docker, and what logs in as it does, keeps the credentials for
    registries."""
    folder = os.environ.get("DOCKER_CONFIG")
    return Path(folder or Path.home() / ".docker") / "config.json"


def _memory() -> int:
    """The size of the machine's memory, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def read_settings(**given: object) -> ServiceSettings:
    """The settings of the environment, with the given ones in place of theirs.

    Raises InputError, naming the variable, where one is not valid.
    """
    try:
        return ServiceSettings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        shown = "…" if field in _SECRETS else first["input"]
        name = _PREFIX + field.upper()
        raise InputError(
            f"{name} is '{shown}': {first['msg'].lower()}; set it to something else"
        ) from None
