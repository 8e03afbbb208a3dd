"""Many models in one process: `python -m tests.hostile.batch WHAT number..`.

The numbers are of the kinds (`kinds`, `unrolled`), or of mutants, which are looked at (`inspect`),
imported (`load`), or built (`build`). Loops are written out to a tenth of what a model may have
(`unrolled`), or to all of it (`unrolled far`). A JSON line
for each: its number, how it ended (good, refused, memory, raised), what was said, and its seconds
of processor time. A process that dies says nothing of the one it died of.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace

from mcfuser.errors import ModelError

from .kinds import KINDS, UNROLLED
from .mutate import mutant

_SECONDS = 15  # of processor time that one may take
_MEMORY = 6 << 30


def main() -> None:
    what, *numbers = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    looks = {"load": _load, "unrolled": _load_little, "unrolled far": _load, "build": _build}
    look = looks.get(what, _inspect)()
    known = {"kinds": KINDS, "unrolled": UNROLLED, "unrolled far": UNROLLED}.get(what, {})
    kinds = [build for build, _ in known.values()]
    for number in map(int, numbers):
        model = kinds[number]() if kinds else mutant(number)
        signal.setitimer(signal.ITIMER_PROF, _SECONDS)
        begun = time.process_time()
        with redirect_stdout(sys.stderr):
            how, said = _ended(look, model)
        seconds = time.process_time() - begun
        answers.write(json.dumps([number, how, said, seconds]) + "\n")
        answers.flush()


def _ended(look: Callable[[bytes], None], model: bytes) -> tuple[str, str]:
    try:
        look(model)
    except ModelError as error:
        return "refused", str(error)
    except MemoryError:
        return "memory", ""
    except Exception:
        return "raised", traceback.format_exc()
    return "good", ""


def _inspect() -> Callable[[bytes], None]:
    from mcfuser.graph.inspection import inspect

    return lambda model: inspect(model, {})


def _load() -> Callable[[bytes], None]:
    from mcfuser.graph.load import load

    def look(model: bytes) -> None:
        load(model, {})

    return look


def _load_little() -> Callable[[bytes], None]:
    from mcfuser.graph.limits import DEFAULTS
    from mcfuser.graph.load import load

    little = {name: getattr(DEFAULTS, name) // 10 for name in ("nodes", "fields")}

    def look(model: bytes) -> None:
        load(model, {}, replace(DEFAULTS, **little))

    return look


def _build() -> Callable[[bytes], None]:
    from mcfuser.codegen.llvm.module import build_library
    from mcfuser.devices.catalogue import device_named
    from mcfuser.graph.assemble import install
    from mcfuser.graph.load import load
    from mcfuser.graph.partition import partition

    device = device_named("cpu")

    def look(model: bytes) -> None:
        loaded = load(model, {})
        partition(loaded.module, device.throughput("float32"), device.bandwidth)
        build_library(install(loaded.module, []), device)

    return look


if __name__ == "__main__":
    main()
