"""The artefact that kept kernels are in a registry: a manifest with one layer, the exported lines.

The manifest is an OCI image manifest with an artifact type of its own and the empty configuration,
as the OCI image specification advises for artefacts that are no images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcfuser.errors import InputError, LimitError
from mcfuser_service.oci.reference import DIGEST

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ARTEFACT = "application/vnd.mcfuser.kernels.v1"
"""The artifact type. Another version of it holds lines that are read otherwise."""
LINES = "application/vnd.mcfuser.kernels.lines.v1+jsonl"
"""The media type of the layer: what `mcfuser cache export` writes."""
EMPTY = "application/vnd.oci.empty.v1+json"
NOTHING = b"{}"
"""The empty configuration: its media type, and its content."""
FILE = "kernels.jsonl"
"""The layer's title, under which other clients save it."""
LARGEST = 256 << 20
"""The largest layer in bytes; some 50,000 kernels."""
LARGEST_MANIFEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """The exported lines in a registry: their digest, and their size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Artefact:
    """The kernels of a manifest, which has a digest of its own."""

    digest: str
    layer: Layer
    annotations: Mapping[str, str] = field(default_factory=dict)


def manifest(
    configuration: Mapping[str, Any], layer: Mapping[str, Any], annotations: Mapping[str, str]
) -> dict[str, Any]:
    """The manifest around a layer; both descriptors have `mediaType`, `digest` and `size`."""
    titled = {**layer, "annotations": {"org.opencontainers.image.title": FILE}}
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": ARTEFACT,
        "config": dict(configuration),
        "layers": [titled],
        "annotations": dict(annotations),
    }


def read_manifest(data: bytes, digest: str, where: str) -> Artefact:
    """The artefact of a manifest's bytes, which have that digest; `where` names it in messages.

    Raises InputError where it is another artefact, LimitError where its layer is too large.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InputError(f"{where} has no manifest: what the registry gives for it is no JSON")
    kind = document.get("artifactType")
    if kind != ARTEFACT:
        found = kind or document.get("mediaType") or "a manifest without a type"
        raise InputError(
            f"{where} is another artefact, {str(found)[:200]}, and no kernels ({ARTEFACT}); give "
            "one that mcfuser cache push wrote"
        )
    layers = document.get("layers")
    layer = layers[0] if isinstance(layers, list) and len(layers) == 1 else None
    if not isinstance(layer, dict) or layer.get("mediaType") != LINES:
        raise InputError(f"{where} has not the one layer of kernels ({LINES}); push it again")
    named, size = layer.get("digest"), layer.get("size")
    if not (isinstance(named, str) and DIGEST.fullmatch(named) and type(size) is int and size >= 0):
        raise InputError(f"{where} has a layer without a SHA-256 digest and a size; push it again")
    if size > LARGEST:
        raise LimitError(
            f"{where} has {size:,} bytes of kernels, more than the {LARGEST:,} that are read; push "
            "them in parts, with --device or --chain",
            "memory",
        )
    told = document.get("annotations")
    words = told.items() if isinstance(told, dict) else ()
    annotations = {str(k): v for k, v in words if isinstance(v, str)}
    return Artefact(digest, Layer(named, size), annotations)
