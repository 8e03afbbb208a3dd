"""Options and arguments that several commands have, and functions that parse them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcfuser.arguments.duration import LONGEST, seconds
from mcfuser.arguments.files import read_json
from mcfuser.arguments.precision import PRECISIONS
from mcfuser.devices.catalogue import EXAMPLE, HOST, names
from mcfuser.extents import MOST

if TYPE_CHECKING:
    from mcfuser.chain import Chain


def among(*words: str) -> Callable[[str], list[str]]:
    """What a shell completes a word with: those of `words` that begin with it."""

    def completed(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return completed


devices_begun = among(*names())
"""The devices whose names begin with a word, for a shell's completion."""

DeviceOption = Annotated[
    str, typer.Option(help=f"one of {', '.join(names())}", autocompletion=devices_begun)
]
ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        help="an input's shape, as input=1x128, or a named dimension's extent, as batch=1; "
        "repeatable",
    ),
]
RangedShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        help="an input's shape, as input=1x128, or with ranges, as input=1..8x16..512, or a named "
        "dimension's, as batch=1..8; repeatable",
    ),
]
BucketsOption = Annotated[
    int,
    typer.Option(help="most shapes that a model with ranges is compiled for", min=1, max=MOST),
]
SeedOption = Annotated[
    int, typer.Option(help="of the search and of random inputs", min=0, max=2**32 - 1)
]
TrialsOption = Annotated[
    int | None, typer.Option(help="most candidates measured for one chain", min=1, max=1_000_000)
]
TimeoutOption = Annotated[
    str | None,
    typer.Option(help="for everything, as 60s, 5m or 1h; without it tuning alone ends after 60s"),
]
CacheOption = Annotated[bool, typer.Option("--cache/--no-cache", help="keep and use tuned kernels")]
RetuneOption = Annotated[
    bool, typer.Option("--retune", help="search again what was kept, and replace it")
]
LockedOption = Annotated[
    Path | None,
    typer.Option(
        "--locked",
        metavar="FILE",
        help="build exactly the kernels that this lock has, without a search, or fail",
    ),
]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        help="fp16 or bf16: narrow products, weights and values between the kernels of a float32 "
        "model; tf32: a GPU may round what it multiplies; without it the model's own types",
        autocompletion=among(*PRECISIONS),
    ),
]
InPlaceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--in-place",
        help="write an output into an input's memory, as past_key=present_key, or many, as "
        "past.*=present.*; repeatable",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="print one JSON document, and nothing else, on stdout")
]
InputsOption = Annotated[
    Path | None, typer.Option("--inputs", help="an .npz file with an array for each input")
]
DtypeOption = Annotated[
    str,
    typer.Option(
        help="storage of a short form's tensors",
        autocompletion=among("float16", "float32", "bfloat16"),
    ),
]
EitherArgument = Annotated[
    str, typer.Argument(metavar="CHAIN|MODEL", help="a chain, as space takes it, or an ONNX model")
]
EitherDeviceOption = Annotated[
    str | None,
    typer.Option(
        "--device",
        help=f"{', '.join(names())}; else {HOST} for a model, {EXAMPLE} for a chain",
        autocompletion=devices_begun,
    ),
]
ChainArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHAIN", help="gemm:batch,M,N,K,H or attention:heads,M,N,K,H or a JSON file"
    ),
]


def tuning(
    seed: int, trials: int | None, timeout: str | None, retune: bool
) -> tuple[dict[str, Any], float | None]:
    """The fields of `TuneOptions` (mcfuser.tune.tuned) that were given, and the seconds that the
    whole command may take, None where that is not limited. Raises InputError."""
    options: dict[str, Any] = {"seed": seed, "trials": trials, "retune": retune}
    if timeout is None:
        return options, None
    limit = seconds(timeout, most=LONGEST)
    return options | {"timeout": limit}, limit


def read_chain(words: str, dtype: str) -> Chain:
    """The chain of a short form, with tensors of type `dtype`, or of a JSON file. Raises
    InputError."""
    from mcfuser.chain import from_json, from_text

    if not words.endswith(".json"):
        return from_text(words, dtype)
    document = read_json(Path(words), f"chain file '{words}'")
    return from_json({"name": Path(words).stem, **document})
