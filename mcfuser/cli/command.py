"""The `mcfuser` command."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.status import Status

from mcfuser.arguments.duration import LONGEST, seconds
from mcfuser.arguments.files import check_readable, read_json
from mcfuser.arguments.shapes import shapes as parse_shapes
from mcfuser.batch.command import batch
from mcfuser.cli.terminal import ended
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE, device_named, names
from mcfuser.errors import InputError, LimitError
from mcfuser.process.confined import Stopped

if TYPE_CHECKING:
    from db import Store
    from mcfuser.chain import Chain
    from mcfuser.tune.tuned import Cache

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.command("batch")(batch)
out = Console(soft_wrap=True)
err = Console(stderr=True, soft_wrap=True)

DeviceOption = Annotated[str, typer.Option(help=f"one of {', '.join(names())}")]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="an input's shape, as input=1x128; repeatable")
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
JsonOption = Annotated[bool, typer.Option("--json", help="print JSON instead of a table")]
DtypeOption = Annotated[str, typer.Option(help="storage of a short form's tensors")]
ChainArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHAIN", help="gemm:batch,M,N,K,H or attention:heads,M,N,K,H or a JSON file"
    ),
]


@app.command("compile")
def compile_(
    model: Annotated[Path, typer.Argument(help="an ONNX model")],
    output: Annotated[Path, typer.Option("--output", "-o", help="a folder for the results")],
    device: DeviceOption = "cpu",
    shape: ShapeOption = None,
    seed: SeedOption = 0,
    trials: TrialsOption = None,
    timeout: TimeoutOption = None,
    cache: CacheOption = True,
    retune: RetuneOption = False,
) -> None:
    """Compile an ONNX model into module.so, with its chains fused where that is faster."""
    begun = _begun()
    options, limit = _options(seed, trials, timeout, retune)
    shapes = parse_shapes(shape or ())
    if device != "cpu":
        device_named(device)  # says so now where it is not known
    check_readable(model, f"model '{model}'")
    _writable(output)
    from mcfuser import report as reporting
    from service.compilation import Request, compiled, start
    from service.settings import read_settings

    settings = read_settings()
    process = start(settings.job_memory)
    store = settings.database_url if cache else None
    if cache:
        _data_folder(settings.data)
    limits = asdict(settings.model_limits)
    request = Request(model, device, options, shapes, store, limit, begun, limits)
    with _progress() as progress:
        artifact = compiled(request, process, progress)
    artifact.report["shapes"] = {name: list(extents) for name, extents in shapes.items()}
    _folder(output)
    _write(output / "module.so", artifact.module)
    _write(output / "report.json", (json.dumps(artifact.report, indent=2) + "\n").encode())
    reporting.show(artifact.report, out)
    out.print(f"wrote {output / 'module.so'} and {output / 'report.json'}", highlight=False)


@app.command("tune")
def tune_(
    chain: ChainArgument,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    trials: TrialsOption = None,
    timeout: TimeoutOption = None,
    cache: CacheOption = True,
    retune: RetuneOption = False,
    source: Annotated[bool, typer.Option("--source", help="print the kernel's source")] = False,
    as_json: JsonOption = False,
) -> None:
    """Tune one chain and print its best kernel."""
    begun = _begun()
    options, limit = _options(seed, trials, timeout, retune)
    end = begun + limit if limit is not None else None
    with _ended(end, limit):
        from mcfuser import report as reporting
        from mcfuser.tune.tuned import Options
        from mcfuser.tune.tuner import tune

        program, target = _chain(chain, dtype), device_named(device)
        with _cache(cache) as kept, _progress() as progress:
            device_ = _probed(target, kept)
            tuned = tune(program, device_, kept, Options(**options), progress, deadline=end)
    if as_json:
        print(json.dumps(tuned.to_json()))
        return
    reporting.show_kernel(tuned, out)
    if source:
        print(tuned.source)


@app.command()
def space(
    chain: ChainArgument,
    device: DeviceOption = "nvidia/a100",
    dtype: DtypeOption = "float16",
    kind: Annotated[str, typer.Option("--space", help="mcfuser or chimera")] = "mcfuser",
    as_json: JsonOption = False,
) -> None:
    """Count the candidates of a chain, and what each pruning rule leaves."""
    from mcfuser import report as reporting
    from mcfuser.space import prune as pruning

    if kind not in ("mcfuser", "chimera"):
        raise InputError(f"space '{kind}' is not known; use mcfuser or chimera")
    program, target = _chain(chain, dtype), device_named(device)
    whole = pruning.space(program, "chimera" if kind == "chimera" else "mcfuser")
    left, steps = pruning.prune(whole, target)
    document = {
        "chain": program.name,
        "device": target.name,
        "expressions": len(whole.expressions),
        "candidates": whole.candidates,
        "after": {
            s.rule: {"expressions": len(s.expressions), "candidates": s.candidates} for s in steps
        },
        "distinct": (distinct := pruning.distinct(left)).candidates,
        "split": pruning.parted(distinct, target).candidates,
    }
    if as_json:
        print(json.dumps(document))
        return
    reporting.show_space(document, steps, out)


@app.command()
def explain(
    chain: ChainArgument,
    device: DeviceOption = "nvidia/a100",
    dtype: DtypeOption = "float16",
) -> None:
    """Show how a chain's reductions depend on each other, and the loop nest they are fused into."""
    from mcfuser import report as reporting

    program = _chain(chain, dtype)
    reporting.show_algebra(program, device_named(device), out)


@app.command()
def run(
    folder: Annotated[Path, typer.Argument(help="the folder that compile wrote")],
    check: Annotated[Path, typer.Option("--check", help="the ONNX model to compare with")],
    shape: ShapeOption = None,
    seed: SeedOption = 1,
    graph: Annotated[
        bool, typer.Option("--graph/--no-graph", help="on a GPU, captured into a CUDA graph")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Run a compiled module in a fresh process, beside onnxruntime on the same random inputs."""
    from mcfuser.graph.check import Place
    from mcfuser.graph.check import check as compare
    from service.settings import read_settings

    device = _report(folder).get("device", "cpu")
    place: Place = "cpu" if device == "cpu" else "graph" if graph else "cuda"
    shapes = parse_shapes(shape or ()) or _compiled_shapes(folder)
    result = compare(folder, _read(check), shapes, seed, place, read_settings().model_limits)
    document = {
        "error": result.error,
        "mcfuser_seconds": result.seconds,
        "onnxruntime_seconds": result.reference_seconds,
    }
    if as_json:
        print(json.dumps(document))
        return
    out.print(f"norm-wise relative error against onnxruntime: {result.error:.1e}")
    out.print(
        f"mcfuser {result.seconds * 1e3:.3f} ms, onnxruntime {result.reference_seconds * 1e3:.3f} "
        f"ms: {result.seconds / result.reference_seconds:.2f} of its time",
        highlight=False,
    )


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one")] = None,
    data: Annotated[Path | None, typer.Option(help="folder of models, modules, database")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="let whoever reaches another host than loopback in")
    ] = False,
) -> None:
    """Serve compilation over HTTP; settings come from MCFUSER_* and these options."""
    from service.serve import serve as serve_
    from service.settings import read_settings

    given = {
        "host": host, "port": port, "data": data.expanduser().resolve() if data else None,
        "insecure": insecure or None,
    }  # fmt: skip
    serve_(read_settings(**{k: v for k, v in given.items() if v is not None}))


@app.command()
def devices() -> None:
    """List the devices that kernels can be tuned for."""
    from mcfuser import report as reporting

    reporting.show_devices([device_named("cpu"), *CATALOGUE.values()], out)


@app.command("device")
def device_(
    name: Annotated[str, typer.Argument(metavar="DEVICE", help="a GPU of the catalogue")],
    probe: Annotated[
        bool, typer.Option("--probe", help="measure the GPU at hand and keep what is found")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a GPU's readings, by which the model scales its constants; measure them in 10 s."""
    from mcfuser import report as reporting

    target = device_named(name)
    if target.kind != "cuda":
        raise InputError(f"device '{name}' is no GPU; the CPU is measured whenever it is used")
    with _store() as store:
        if probe:
            from mcfuser.backends.cuda.probe import probe as measure
            from mcfuser.backends.cuda.worker import GpuWorker

            with GpuWorker(target) as worker, Status("probing", console=err):
                found = measure(target, worker)
            store.keep_probe(target.name, found.readings, found.conditions)
        target = store.probed(target)
    if as_json:
        print(json.dumps({"device": target.name, "readings": dict(target.readings)}))
        return
    reporting.show_readings(target, out)


# --- what the commands share ----------------------------------------------------------------


def _options(
    seed: int, trials: int | None, timeout: str | None, retune: bool
) -> tuple[dict[str, Any], float | None]:
    """The tuner's options, and what everything may take, in seconds, where that is limited."""
    options: dict[str, Any] = {"seed": seed, "trials": trials, "retune": retune}
    if timeout is None:
        return options, None
    limit = seconds(timeout, most=LONGEST)
    return options | {"timeout": limit}, limit


@contextmanager
def _ended(end: float | None, limit: float | None) -> Iterator[None]:
    """Raises LimitError in what is still done a while after `end` (time.monotonic()): what looks at
    no clock, on a busy machine."""
    if end is None or limit is None:
        yield
        return

    from service.compilation import grace

    def late(*_: object) -> NoReturn:
        raise LimitError(f"the chain was not tuned within {limit:g} s; give it more time")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, max(1e-3, end + grace(limit) - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _begun() -> float:
    """When this process was started, on time.monotonic(): a limit holds for the whole command,
    and a busy machine takes seconds to load it."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    except (OSError, AttributeError):  # no Linux
        age = time.process_time()
    return time.monotonic() - age


def _compiled_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes that the module was compiled for, from its report."""
    given = _report(folder).get("shapes", {})
    return {name: tuple(extents) for name, extents in given.items()}


def _report(folder: Path) -> dict[str, Any]:
    """What compile wrote beside the module; empty where there is none."""
    path = folder / "report.json"
    if not path.is_file():
        return {}
    found: dict[str, Any] = read_json(path, f"report '{path}'")
    shapes = found.get("shapes", {})
    fits = isinstance(shapes, dict) and all(map(_is_shape, shapes.values()))
    for field, fine in (("device", isinstance(found.get("device", ""), str)), ("shapes", fits)):
        if not fine:
            raise InputError(
                f"report '{path}' is not one of mcfuser's: its {field} is of another kind; "
                "compile the model again"
            )
    return found


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and n > 0 for n in value)


def _read(path: Path) -> bytes:
    check_readable(path, f"model '{path}'")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"model '{path}' cannot be read: {error.strerror}") from None


def _folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder '{path}' cannot be made: {error.strerror}") from None


def _data_folder(path: Path) -> None:
    """The folder of kernels; where it is new, it is the user's alone."""
    from db.private import make_folder

    try:
        make_folder(path)
    except OSError as error:
        raise InputError(
            f"data folder '{path}' cannot be made: {error.strerror}; set MCFUSER_DATA to another "
            "one"
        ) from None


def _writable(path: Path) -> None:
    """Says so now, not after a minute of tuning, where the folder cannot be written to."""
    there = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"'{there}' is no folder that can be written to; choose another one")


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all, and never into a file that another process has loaded."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.replace(file.name, path)
            except OSError:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from None


def _chain(words: str, dtype: str) -> Chain:
    from mcfuser.chain import from_json, from_text

    if not words.endswith(".json"):
        return from_text(words, dtype)
    document = read_json(Path(words), f"chain file '{words}'")
    return from_json({"name": Path(words).stem, **document})


@contextmanager
def _cache(wanted: bool) -> Iterator[Cache]:
    """The kernel cache under the user's data folder, or one for this run alone."""
    from mcfuser.tune.tuned import MemoryCache

    if not wanted:
        yield MemoryCache()
        return
    with _store() as store:
        yield store


@contextmanager
def _store() -> Iterator[Store]:
    """The store under the user's data folder."""
    from db import StorageError, Store
    from service.settings import read_settings

    settings = read_settings()
    _data_folder(settings.data)
    store = Store(settings.database_url)
    try:
        yield store
    except StorageError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise InputError(
            f"the database of kernels in '{settings.data}' cannot be used: {reason}; free some "
            "space, set MCFUSER_DATA to another folder, or say --no-cache"
        ) from None
    finally:
        store.close()


def _probed(device: Device, kept: Cache) -> Device:
    """The device with what a probe has found of it, where that was kept."""
    if device.kind == "cpu":
        return device
    from db import Store

    return kept.probed(device) if isinstance(kept, Store) else device


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A line that tells the stage while work goes on; where nobody watches, one for each stage
    once it is past, so that a mistake is told by its own sentence alone."""
    last = "start"
    with Status("starting", console=err) as status:

        def tell(stage: str, done: int, total: int) -> None:
            nonlocal last
            words = f"{stage}: {done} of {total} candidates" if total > 1 else stage
            if err.is_terminal:
                status.update(words)
            elif last != "start" and stage.split(":")[0] != last.split(":")[0]:
                err.print(last, highlight=False)
            last = words

        yield tell


def main() -> None:
    """Runs the command; a mistake of the user's is one sentence on stderr and status 2, a limit
    that was reached or a compiler that crashed one and status 1."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends children first
    sys.exit(ended(_command))


def _command() -> None:
    try:
        app()
    except Stopped as died:
        raise LimitError(f"the model was not compiled: {died}") from None


if __name__ == "__main__":
    main()
