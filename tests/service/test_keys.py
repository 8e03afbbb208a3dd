"""/v1/keys: keys are made, shown once, listed and revoked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from mcfuser.errors import InputError
from mcfuser_db import Blobs, KeyGrant, Storage
from mcfuser_db.api_keys import make_key
from mcfuser_service.app import create_app
from mcfuser_service.keys import KeyIn, read_key
from mcfuser_service.settings import ServiceSettings


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = ServiceSettings(data=tmp_path, require_key=True)
    store = Storage(settings.database_url)
    key = make_key(store, KeyGrant("root", ("admin",)))[1]
    app = create_app(settings, store, Blobs(settings.blobs), lambda: 1)
    headers = {"Authorization": f"Bearer {key.words}"}
    with TestClient(app, base_url="http://localhost", headers=headers) as client:
        yield client
    store.close()


def test_a_key_is_shown_once_and_works_at_once(client: TestClient) -> None:
    asked = {"name": "ci", "scopes": ["read", "submit", "read"], "rate": "60/m", "queued": 20,
             "disk": "10GB", "expires": "90d"}  # fmt: skip
    made = client.post("/v1/keys", json=asked)
    assert made.status_code == 201 and made.headers["cache-control"] == "no-store"
    body = made.json()
    text = body.pop("key")
    assert text.startswith(f"mcfuser_{body['id']}_")
    assert (body["scopes"], body["rate"], body["queued"], body["disk"]) == (
        ["submit", "read"], "60/m", 20, 10**10,
    )  # fmt: skip
    assert client.get("/v1/jobs", headers={"Authorization": f"Bearer {text}"}).status_code == 200
    one = client.get(made.headers["location"]).json()
    listed = client.get("/v1/keys")
    assert [k["name"] for k in listed.json()] == ["ci", "root"] and one == listed.json()[0]
    assert one["used"] is not None and {**one, "used": None} == body
    assert text not in listed.text and text[21:] not in listed.text


def test_a_revoked_key_is_refused_at_once(client: TestClient) -> None:
    made = client.post("/v1/keys", json={"name": "ci"}).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    path = f"/v1/keys/{made['id']}"
    assert client.get("/v1/jobs", headers=headers).status_code == 200
    assert client.get(path, headers=headers).status_code == 403
    assert [client.delete(path).status_code for _ in range(2)] == [204, 204]
    assert client.get("/v1/jobs", headers=headers).status_code == 401
    assert client.get(path).json()["revoked"] is not None
    assert client.post("/v1/keys", json={"name": "ci"}).status_code == 201, "its name is free"


def test_what_is_wrong_is_a_problem(client: TestClient) -> None:
    missing = client.delete(f"/v1/keys/{'0' * 12}")
    assert missing.status_code == client.get(f"/v1/keys/{'0' * 12}").status_code == 404
    assert missing.json()["type"] == "urn:mcfuser:problem:no-such-key"
    assert client.get("/v1/keys/x").status_code == 422
    taken = client.post("/v1/keys", json={"name": "root"})
    assert taken.status_code == 409 and "'root' already" in taken.json()["detail"]
    for body in (
        {}, {"name": ""}, {"name": "a\nb"}, {"name": "x" * 101}, {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["all"]}, {"name": "x", "rate": "60"}, {"name": "x", "queued": 0},
        {"name": "x", "disk": "-1"}, {"name": "x", "expires": "soon"}, {"name": "x", "x": 1}, [],
    ):  # fmt: skip
        answer = client.post("/v1/keys", json=body)
        assert answer.status_code == 422 and answer.json()["errors"], body
    assert client.post("/v1/keys", content=b"{").status_code == 422
    assert len(client.get("/v1/keys").json()) == 1


def test_words_of_a_command_make_the_same_key() -> None:
    fields: dict[str, Any] = {"name": "ci", "scopes": ["admin"], "rate": "5/s", "disk": "1KiB"}
    assert read_key(fields) == KeyIn(**fields)
    assert read_key(fields).grant == KeyGrant("ci", ("admin",), 5, 1.0, None, 1024, None)
    with pytest.raises(InputError, match=r"rate 'x' cannot be used: rate 'x' is not one; write"):
        read_key({**fields, "rate": "x"})
    with pytest.raises(InputError, match="scopes 'all' cannot be used: Input should be 'submit'"):
        read_key({**fields, "scopes": ["all"]})
