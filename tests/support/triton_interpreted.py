"""Kernels run by Triton's own interpreter, block by block on the CPU, in a process of its own:
Triton reads TRITON_INTERPRET when it is imported."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mcfuser.codegen.triton import TensorMap, TritonSource
from tests.support.numpy_triton import workspaces


@dataclass(frozen=True)
class Case:
    """A source, the flat arrays of its parameters, and its run-time extents by axis."""

    source: TritonSource
    memory: Mapping[str, np.ndarray]
    extents: Mapping[str, int] = field(default_factory=dict)


def interpreted(cases: Sequence[Case], folder: Path) -> list[dict[str, np.ndarray] | str]:
    """What each case leaves in memory, workspaces included, or the error that it ended with."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    (folder / "cases.pickle").write_bytes(pickle.dumps(list(cases)))
    subprocess.run([sys.executable, __file__, str(folder)], env=env, check=True)
    found: list[dict[str, np.ndarray] | str]
    found = pickle.loads((folder / "found.pickle").read_bytes())
    return found


# --- in the process


class Memory:
    """What the interpreter asks of a tensor that is on the CPU already, over an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype = array, array.dtype

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def untyped_storage(self) -> Memory:
        return self

    def cpu(self) -> Memory:
        return self

    def copy_(self, other: Memory) -> None:
        assert other.array is self.array

    def new_empty(self, size: int, device: str) -> Memory:
        assert (size, device) == (0, "cpu")
        return Memory(self.array)

    def set_(self, storage: Memory, offset: int, size: Any, stride: Any) -> None:
        assert storage.array is self.array

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return self.array.shape

    def stride(self) -> tuple[int, ...]:
        return (1,)


def run(case: Case, module: ModuleType) -> dict[str, np.ndarray]:
    memory = {name: array.copy() for name, array in case.memory.items()}
    memory |= workspaces(case.source)
    for launch in case.source.launches:
        kernel = getattr(module, launch.name)
        pointers = [Memory(memory[name]) for name in launch.arguments]
        maps = [described(memory[m.tensor], m) for m in launch.maps]
        numbers = [case.extents[a] for a in launch.extents]
        kernel[launch.blocks(case.extents)](*pointers, *maps, *numbers)
    return memory


def described(array: np.ndarray, m: TensorMap) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(Memory(array[m.offset :]), [*m.shape], [*m.strides], [*m.box])


def main(folder: Path) -> None:
    cases: list[Case] = pickle.loads((folder / "cases.pickle").read_bytes())
    found: list[dict[str, np.ndarray] | str] = []
    for i, case in enumerate(cases):
        path = folder / f"kernel_{i}.py"
        path.write_text(case.source.text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            with np.errstate(all="ignore"):
                found.append(run(case, module))
        except Exception as error:  # whatever the kernel meets; the test shows it
            found.append(f"{type(error).__name__}: {error}")
    (folder / "found.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    from tests.support.triton_interpreted import (  # by the name under which the cases were pickled
        Case,
        main,
    )

    main(Path(sys.argv[1]))
