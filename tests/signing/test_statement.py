"""What a statement says, and which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mcfuser.errors import InputError, SignatureError
from mcfuser.signing.statement import PREDICATE_TYPE, Subject, read_statement, statement
from tests.support.signatures import MODEL, MODULE, REPORT, WEIGHTS, sha256


def made(**changed: Any) -> bytes:
    return statement(json.dumps({**REPORT, **changed}).encode(), Subject.of(MODULE))


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made())
    return found


def test_a_statement_is_about_the_module_and_its_report() -> None:
    found, report = document(), json.dumps(REPORT).encode()
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == PREDICATE_TYPE == "urn:mcfuser:attestation:module:v1"
    assert found["subject"] == [
        {"name": "module.so", "digest": {"sha256": sha256(MODULE)},
         "annotations": {"bytes": len(MODULE)}},
        {"name": "report.json", "digest": {"sha256": sha256(report)},
         "annotations": {"bytes": len(report)}},
    ]  # fmt: skip


def test_the_predicate_says_what_the_module_was_made_from() -> None:
    assert document()["predicate"] == {
        "model": {
            "digest": {"sha256": sha256(MODEL)},
            "external": [{"name": "model.onnx.data", "digest": {"sha256": sha256(WEIGHTS)}}],
        },
        "device": {"name": "cpu", "arch": "some-arch", "key": "cpu/some-arch/2"},
        "options": {
            "shapes": {"x": [1, "16..512"]}, "precision": "float16",
            "inPlace": {"past": "present"}, "seed": 7,
        },
        "versions": {"mcfuser": "0.1.0+abc", "apache-tvm": "0.27"},
        "toolchain": {"llvm": "22"},
        "sources": "5eed",
        "check": {"tolerance": 1e-4, "errors": {"y": 1e-7, "z": 2e-7}},
        "kernels": [
            {"key": "11", "chain": "MatMul_0", "chainKey": "22", "operators": ["C", "E"],
             "error": 1e-7},
            {"key": "33", "chain": "MatMul_0", "chainKey": "44", "operators": ["F"],
             "error": None},
        ],
        "built": "2026-10-30T12:00:00Z",
    }  # fmt: skip
    skipped = json.loads(made(check={"skipped": "not asked for"}, precision=None))["predicate"]
    assert skipped["check"] == {"skipped": "not asked for"}
    assert skipped["options"]["precision"] is None
    archived = json.loads(made(model=REPORT["model"] | {"archive": "a" * 64}))["predicate"]
    assert archived["model"]["archive"] == {"digest": {"sha256": "a" * 64}}


def test_equal_files_give_equal_bytes() -> None:
    assert made() == made()
    names = json.loads(made(), object_pairs_hook=lambda pairs: [name for name, _ in pairs])
    assert names == sorted(names) and b" " not in made().replace(b"not asked for", b"")


@pytest.mark.parametrize("field", ["model", "module", "built", "device", "lock", "check", "chains"])
def test_a_report_without_what_is_stated_is_one_sentence(field: str) -> None:
    report = {k: v for k, v in REPORT.items() if k != field}
    with pytest.raises(InputError, match=f"does not say what is to be signed: {field}: ") as caught:
        statement(json.dumps(report).encode(), Subject.of(MODULE))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("report", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"model": 7}'])
def test_what_is_no_report_is_one_sentence(report: bytes) -> None:
    with pytest.raises(InputError, match="does not say what is to be signed"):
        statement(report, Subject.of(MODULE))


def test_the_report_of_another_module_is_not_signed() -> None:
    with pytest.raises(InputError, match=r"module\.so is not the one that report\.json tells of"):
        statement(json.dumps(REPORT).encode(), Subject.of(MODULE + b"x"))


def test_a_statement_is_read_as_it_was_written() -> None:
    found = read_statement(made(), "it")
    assert found.subjects["module.so"] == Subject.of(MODULE)
    assert found.model.sha256 == sha256(MODEL)
    assert found.model.external == {"model.onnx.data": sha256(WEIGHTS)}
    assert found.model.archive is None
    assert found.predicate == document()["predicate"]


def hostile() -> dict[str, tuple[object, str]]:
    good = document()
    module, report = good["subject"]
    short = {**module, "digest": {"sha256": "abc"}}
    other = {**module, "name": "../../etc/passwd"}
    unmeasured = {k: v for k, v in module.items() if k != "annotations"}
    negative = {**module, "annotations": {"bytes": -1}}
    return {
        "no JSON": (b"{", "its payload is not JSON"),
        "a list": ([], "its _type is 'None'"),
        "another type": (good | {"_type": "x"}, "its _type is 'x'"),
        "another predicate": (
            good | {"predicateType": "https://slsa.dev/provenance/v1"}, "its predicateType is",
        ),
        "no subject": (good | {"subject": []}, "is about no file"),
        "one subject": (good | {"subject": [module]}, r"is about 'module\.so', not about"),
        "a subject twice": (good | {"subject": [module, module]}, "is about 'module.so', 'mod"),
        "other files": (good | {"subject": [other, report]}, "is about '../../etc/passwd', 'rep"),
        "one more": (good | {"subject": [module, report, other]}, "is about .*not about"),
        "a short digest": (good | {"subject": [short, report]}, r"malformed .*subject\.0\.digest"),
        "no size": (good | {"subject": [unmeasured, report]}, r"how many bytes module\.so has"),
        "a size below zero": (good | {"subject": [negative, report]}, "malformed statement"),
        "subjects of words": (good | {"subject": "module.so"}, "malformed statement: subject"),
        "no model": (good | {"predicate": {}}, r"malformed statement: predicate\.model"),
    }  # fmt: skip


@pytest.mark.parametrize("name", hostile())
def test_another_statement_is_one_sentence(name: str) -> None:
    given, words = hostile()[name]
    payload = given if isinstance(given, bytes) else json.dumps(given).encode()
    with pytest.raises(SignatureError, match=f"^it .*{words}") as caught:
        read_statement(payload, "it")
    assert str(caught.value).isprintable()
