"""Which addresses may be told, and how what they are told is signed."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from mcfuser_service.problems import ProblemError
from mcfuser_service.settings import ServiceSettings
from mcfuser_service.webhooks import check_target, headers, unusable

HOSTS = ("ci.example", "10.0.0.5:8080", "[::1]")
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


@pytest.mark.parametrize(
    "address",
    ["https://ci.example/hook", "http://ci.example", "https://CI.Example./a?b=c",
     "https://ci.example:443/", "http://10.0.0.5:8080/x", "https://10.0.0.5:8080/x",
     "http://[::1]/", "https://[::1]:443/x"],
)  # fmt: skip
def test_named_hosts_are_told(address: str) -> None:
    assert unusable(address, HOSTS) is None


@pytest.mark.parametrize(
    "address",
    ["https://evil.example/", "https://ci.example.evil.example/", "https://evil.example/ci.example",
     "https://ci.example:22/", "http://ci.example:443/", "http://10.0.0.5/", "http://localhost/",
     "http://127.0.0.1:8642/v1/jobs", "http://169.254.169.254/latest/meta-data",
     "https://ci.example@evil.example/", "https://user:word@ci.example/", "https://@evil.example/",
     "https://ci.example\\@evil.example/", "https://ci.example#@evil.example/", "ci.example",
     "file:///etc/passwd", "gopher://ci.example/", "ftp://ci.example/", "//ci.example/", "https://",
     "", "https:ci.example", "https://ci.example:0/", "https://ci.example:99999/",
     "https://ci.example:x/", "https://[::2]/", "https://[::1/", "https://cı.example/",
     "http://2130706433/", "https://ci.example%00.evil.example/", "https://ci.example%2eevil/"],
)  # fmt: skip
def test_all_others_are_not(address: str) -> None:
    assert unusable(address, HOSTS) is not None


def test_without_a_secret_or_hosts_nobody_is(tmp_path: Path) -> None:
    for given in ({}, {"webhook_secret": SECRET}, {"webhook_hosts": "ci.example"}):
        settings = ServiceSettings(data=tmp_path, **given)
        with pytest.raises(ProblemError, match="MCFUSER_WEBHOOK_SECRET and MCFUSER_WEBHOOK_HOSTS"):
            check_target("https://ci.example/", settings)
    settings = ServiceSettings(data=tmp_path, webhook_secret=SECRET, webhook_hosts="ci.example")
    check_target("https://ci.example/", settings)
    with pytest.raises(ProblemError, match=r"does not name 'other\.example:443'"):
        check_target("https://other.example/", settings)


def test_a_message_is_signed_as_the_standard_says() -> None:
    """The signature covers the id, the second of the attempt, and the body."""
    key, body = bytes(range(24)), b'{"type":"job.done"}'
    moment = datetime(2026, 1, 2, 3, 4, 5, 600_000, tzinfo=UTC)
    found = headers(UUID(int=7), body, moment, key)
    seconds = found["webhook-timestamp"]
    assert seconds == str(int(moment.timestamp())) and found["webhook-id"] == str(UUID(int=7))
    signed = f"{UUID(int=7)}.{seconds}.".encode() + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert found["webhook-signature"] == f"v1,{expected}"
