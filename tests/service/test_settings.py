"""Settings as the environment gives them."""

import base64
from pathlib import Path

import pytest

from mcfuser.errors import InputError
from mcfuser_service.settings import ClientSettings, ServiceSettings, read_api_key, read_settings


def test_defaults_are_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    settings = read_settings()
    assert settings.host == "127.0.0.1" and settings.workers == 1
    assert settings.data == tmp_path / "mcfuser"
    assert settings.database_url == f"sqlite:///{tmp_path}/mcfuser/mcfuser.db"


def test_the_environment_is_read_and_what_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCFUSER_PORT", "1234")
    monkeypatch.setenv("MCFUSER_WORKERS", "3")
    monkeypatch.setenv("MCFUSER_DATABASE", "postgresql://me:hunter2@db/mcfuser")
    settings = read_settings(port=99)
    assert (settings.port, settings.workers) == (99, 3)
    assert settings.database_url == "postgresql://me:hunter2@db/mcfuser"
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "http"),
        ("PORT", "70000"),
        ("WORKERS", "-1"),
        ("LOG_LEVEL", "x"),
        ("INSECURE", "maybe"),
        ("ALLOWED_HOSTS", "a b"),
    ],
)
def test_a_bad_variable_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"MCFUSER_{name}", value)
    with pytest.raises(InputError, match=f"MCFUSER_{name} is '{value}'") as caught:
        read_settings()
    assert "\n" not in str(caught.value)


def test_a_client_s_key_is_read_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCFUSER_API_KEY", raising=False)
    assert read_api_key() is None
    monkeypatch.setenv("MCFUSER_API_KEY", " ")
    assert read_api_key() is None
    monkeypatch.setenv("MCFUSER_API_KEY", " mcfuser_1_2\n")
    assert read_api_key() == "mcfuser_1_2" and "mcfuser_1" not in repr(ClientSettings())


def test_webhooks_have_a_secret_and_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_settings().webhook_key is None and read_settings().webhook_hosts == ()
    secret = "whsec_" + base64.b64encode(bytes(range(24))).decode()
    monkeypatch.setenv("MCFUSER_WEBHOOK_SECRET", secret)
    monkeypatch.setenv("MCFUSER_WEBHOOK_HOSTS", "CI.example, 10.0.0.5:8080,[::1]:80, [::1],")
    settings = read_settings()
    assert settings.webhook_key == bytes(range(24)) and secret not in repr(settings)
    assert settings.webhook_hosts == ("ci.example", "10.0.0.5:8080", "[::1]:80", "[::1]")
    assert ServiceSettings(**settings.revealed()) == settings
    for bad in ("a b", "https://ci.example", "ci.example:0", "ci.example:99999", "::1", ":80"):
        monkeypatch.setenv("MCFUSER_WEBHOOK_HOSTS", bad)
        with pytest.raises(InputError, match=r"MCFUSER_WEBHOOK_HOSTS is .*hosts parted by commas"):
            read_settings()


@pytest.mark.parametrize("secret", ["", "hunter2", "whsec_", "whsec_hunter2", "whsec_" + "A" * 200])
def test_a_malformed_secret_is_refused_and_not_told(
    monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("MCFUSER_WEBHOOK_SECRET", secret)
    with pytest.raises(InputError, match=r"MCFUSER_WEBHOOK_SECRET is '…': .*24 to 64 bytes") as bad:
        read_settings()
    assert "hunter2" not in str(bad.value)


def test_allowed_hosts_are_names_parted_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCFUSER_ALLOWED_HOSTS", "A.example, 10.0.0.5,[::1],localhost.,")
    assert read_settings().allowed_hosts == ("a.example", "10.0.0.5", "::1", "localhost")
    monkeypatch.delenv("MCFUSER_ALLOWED_HOSTS")
    assert read_settings().allowed_hosts == () and read_settings().insecure is False
