"""What a manifest must be for its kernels to be fetched."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcfuser.errors import InputError, LimitError
from mcfuser_service.oci.artefact import ARTEFACT, LARGEST, LINES, Layer, manifest, read_manifest

DIGEST = f"sha256:{'0a' * 32}"
LAYER = {"mediaType": LINES, "digest": DIGEST, "size": 12}


def written(**changed: Any) -> bytes:
    made = manifest({"mediaType": "x", "digest": DIGEST, "size": 2}, LAYER, {"a": "b"})
    return json.dumps({**made, **changed}).encode()


def test_what_is_written_is_read() -> None:
    found = read_manifest(written(), "sha256:m", "oci://h/k:x")
    assert (found.digest, found.layer) == ("sha256:m", Layer(DIGEST, 12))
    assert found.annotations == {"a": "b"}
    assert json.loads(written())["layers"][0]["annotations"] == {
        "org.opencontainers.image.title": "kernels.jsonl"
    }
    assert read_manifest(written(annotations=[3]), "", "").annotations == {}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"[]", "is no JSON"),
        (b"{}", "is another artefact, a manifest without a type"),
        (written(artifactType="application/vnd.helm"), "another artefact, application/vnd.helm"),
        (written(artifactType=None), "another artefact, application/vnd.oci.image.manifest"),
        (written(layers=[]), "not the one layer"),
        (written(layers=[LAYER, LAYER]), "not the one layer"),
        (written(layers=[{**LAYER, "mediaType": "text/plain"}]), "not the one layer"),
        (written(layers=[{**LAYER, "digest": "sha512:00"}]), "without a SHA-256 digest"),
        (written(layers=[{**LAYER, "digest": "../../etc"}]), "without a SHA-256 digest"),
        (written(layers=[{**LAYER, "size": -1}]), "and a size"),
        (written(layers=[{**LAYER, "size": 1e3}]), "and a size"),
    ],
)
def test_what_is_no_artefact_of_kernels_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(InputError, match=f"oci://h/k:x .*{why}"):
        read_manifest(data, "", "oci://h/k:x")
    assert ARTEFACT not in why


def test_a_giant_layer_is_not_fetched() -> None:
    giant = written(layers=[{**LAYER, "size": LARGEST + 1}])
    with pytest.raises(LimitError, match="268,435,457 bytes of kernels, more than") as raised:
        read_manifest(giant, "", "oci://h/k:x")
    assert raised.value.what == "memory"
    read_manifest(written(layers=[{**LAYER, "size": LARGEST}]), "", "")
