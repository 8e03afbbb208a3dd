"""Keys, and folders as compile writes them, without a compilation."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from mcfuser.signing.key import SigningKey

MODULE = b"\x7fELF module" * 1000
MODEL, WEIGHTS = b"the model", b"its weights"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


REPORT: dict[str, Any] = {
    "device": "cpu",
    "arch": "some-arch",
    "seed": 7,
    "shapes": {"x": [1, "16..512"]},
    "precision": {"dtype": "float16", "narrow_products": 1},
    "in_place": {"past": "present"},
    "versions": {"mcfuser": "0.1.0", "apache-tvm": "0.27"},
    "revision": "0.1.0+abc",
    "built": "2026-10-30T12:00:00Z",
    "lock": {"device": "cpu/some-arch/2", "toolchain": {"llvm": "22"}, "sources": "5eed"},
    "check": {"error": 2e-7, "outputs": {"y": 1e-7, "z": 2e-7}, "tolerance": 1e-4},
    "chains": [
        {
            "name": "MatMul_0",
            "kernels": [
                {"key": "11", "chain_key": "22", "operators": ["C", "E"], "error": 1e-7},
                {"key": "33", "chain_key": "44", "operators": ["F"], "error": None},
            ],
        },
        {"name": "Softmax_1", "kernels": []},
    ],
    "model": {
        "sha256": sha256(MODEL), "bytes": len(MODEL), "archive": None,
        "external": {"model.onnx.data": sha256(WEIGHTS)},
    },
    "module": {"sha256": sha256(MODULE), "bytes": len(MODULE)},
}  # fmt: skip


def signed_report(module: bytes) -> dict[str, Any]:
    """What a statement about a module has of its report, for an input `x` of 1 x 4."""
    told = {"sha256": sha256(module), "bytes": len(module)}
    fields = ("model", "revision", "built", "versions", "lock", "seed")
    return {name: REPORT[name] for name in fields} | {"module": told, "shapes": {"x": [1, 4]}}


def private_key(seed: int = 1) -> SigningKey:
    """A key that is equal for equal seeds."""
    return SigningKey(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


def write_keys(folder: Path, key: SigningKey, passphrase: bytes | None = None) -> tuple[Path, Path]:
    """The private and the public key in PEM, in files of a folder."""
    hidden = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    private, public = folder / "release.key", folder / "release.pub"
    private.write_bytes(key.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
    public.write_bytes(key.public.pem)
    return private, public


def write_compilation(folder: Path, **changed: Any) -> Path:
    """A folder with a module and a report, in which `changed` fields are others."""
    folder.mkdir(exist_ok=True)
    (folder / "module.so").write_bytes(MODULE)
    (folder / "report.json").write_text(json.dumps({**REPORT, **changed}))
    return folder
