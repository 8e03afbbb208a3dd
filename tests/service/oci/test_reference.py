"""References of artefacts in registries."""

from __future__ import annotations

import pytest

from mcfuser.errors import InputError
from mcfuser_service.oci.reference import Reference, loopback, read_reference

DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("oci://ghcr.io/team/kernels:main", Reference("ghcr.io", "team/kernels", "main")),
        ("oci://localhost/k", Reference("localhost", "k", "latest")),
        ("oci://[::1]:5000/a/b-c__d:V1.0", Reference("[::1]:5000", "a/b-c__d", "V1.0")),
        (f"oci://h:1/k@{DIGEST}", Reference("h:1", "k", "latest", DIGEST)),
        (f"oci://h:1/k:x@{DIGEST}", Reference("h:1", "k", "x", DIGEST)),
    ],
)
def test_a_reference_is_read(words: str, found: Reference) -> None:
    assert read_reference(words) == found
    assert read_reference(str(found)) == Reference(
        found.host, found.repository, found.tag if found.digest is None else "latest", found.digest
    )


@pytest.mark.parametrize(
    "words",
    [
        "", "oci://", "oci://host", "oci://host/", "oci://host/UPPER:x", "oci://host/k:", "k:tag",
        "oci://user:password@host/k:x", "oci://host/../k", "oci://host/k?x=1", "oci://host/k:a b",
        "oci://host/k@sha256:12", "oci://host/k@md5:00", "https://host/k:x", "oci://host/a//b:x",
        "oci://host/k:x\n", "oci://" + "a" * 2000 + "/k:x", "oci://host:123456/k", "oci://-h/k",
    ],
)  # fmt: skip
def test_what_is_none_is_refused(words: str) -> None:
    with pytest.raises(InputError, match="names no artefact of a registry; write oci://"):
        read_reference(words)


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True), ("127.0.0.1:5000", True), ("[::1]:5000", True), ("[::1]", True),
        ("localhost.evil.example", False), ("10.0.0.1", False), ("ghcr.io:443", False),
    ],
)  # fmt: skip
def test_loopback_is_this_machine(host: str, here: bool) -> None:
    assert loopback(host) is here and Reference(host, "k", "x").loopback is here
