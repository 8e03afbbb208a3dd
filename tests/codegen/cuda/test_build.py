"""Where the build finds NVIDIA's packages, which pip may have put in several places."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from mcfuser.codegen.cuda.build import _know_frames_of_imports, found_in

SCRIPT = "from mcfuser.codegen.cuda.build import places; print(*places(), sep='\\n')"


def place(root: Path, *files: str) -> Path:
    folder = root / "nvidia" / "cu13"
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return folder


def test_frames_of_imports_are_known_to_inspect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "modulesbyfile", {})
    _know_frames_of_imports()
    for module in ("importlib._bootstrap", "importlib._bootstrap_external"):
        code = compile("", f"<frozen {module}>", "exec")
        assert inspect.getmodule(code, code.co_filename) is sys.modules[module]


def test_packages_in_threeplaces_are_one_toolkit(tmp_path: Path) -> None:
    first = place(tmp_path / "a", "lib/libnvrtc.so.13", "include/nvrtc.h")
    second = place(tmp_path / "b", "include/cuda_runtime.h")
    third = place(
        tmp_path / "c", "lib/libcudart.so.13", "include/cccl/cuda/std/atomic", "include/crt/mma.h"
    )
    found = found_in([first, second, third])
    assert (found.root, found.runtime) == (second, third / "lib/libcudart.so.13")
    assert found.includes == (
        third / "include/cccl", first / "include", second / "include", third / "include",
    )  # fmt: skip


def test_the_first_on_the_path_is_taken(tmp_path: Path) -> None:
    files = ("include/cuda_runtime.h", "lib/libcudart.so.13", "include/crt/mma.h")
    both = [place(tmp_path / n, *files) for n in ("a", "b")]
    assert found_in(both).root == both[0]
    assert found_in(both).runtime.parent.parent == both[0]


@pytest.mark.parametrize("files", [(), ("include/cuda_runtime.h",), ("lib/libcudart.so.13",)])
def test_what_is_missing_is_named(files: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="install the package nvidia-cuda-runtime"):
        found_in([place(tmp_path, "lib/other", *files)])
    with pytest.raises(FileNotFoundError, match=r"no folder has no include/cuda_runtime.h"):
        found_in([])


def test_headers_of_products_are_missed_before_tvm_looks_for_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"crt/mma\.h; install the package nvidia-cuda-crt"):
        found_in([place(tmp_path, "include/cuda_runtime.h", "lib/libcudart.so.13")])


def test_every_place_of_the_path_is_seen(tmp_path: Path) -> None:
    places = [place(tmp_path / n, "lib/x") for n in ("a", "b")]
    code = f"import sys; sys.path[:0] = {[str(tmp_path / n) for n in ('a', 'b')]!r}; {SCRIPT}"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [Path(p) for p in told.stdout.split()][:2] == places
