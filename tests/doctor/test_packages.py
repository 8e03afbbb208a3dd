"""Packages that are declared, and those that are installed."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError

import pytest

from mcfuser.doctor import packages

DECLARED = [
    "apache-tvm<0.28,>=0.27.0",
    "apache-tvm-ffi==0.1.14.post1",
    "sympy>=1.13",
    'cuda-core>=1.0; extra == "gpu"',
    'pywin32; sys_platform == "win32"',
]


def installed(monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
    def version(name: str) -> str:
        try:
            return known[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(packages, "version", version)


def test_all_that_is_needed_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(
        monkeypatch, apache_tvm="0.27.0.post1", apache_tvm_ffi="0.1.14.post1", sympy="1.14.0rc1"
    )
    (found,) = packages.compared(DECLARED)
    assert found.level == "ok" and found.sentence.startswith("all 3 that mcfuser needs")
    assert found.facts["apache-tvm-ffi"] == "0.1.14.post1"


def test_another_version_and_a_missing_package_are_named_with_the_command_that_mends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, apache_tvm="0.27.0.post1", apache_tvm_ffi="0.1.15")
    ffi, sympy = packages.compared(DECLARED)
    assert (ffi.level, sympy.level) == ("problem", "problem")
    assert ffi.sentence == ("apache-tvm-ffi 0.1.15 is installed, and mcfuser needs ==0.1.14.post1")
    assert ffi.remedy == "run pip install 'apache-tvm-ffi==0.1.14.post1'"
    assert (sympy.sentence, sympy.remedy) == (
        "sympy is not installed", "run pip install 'sympy>=1.13'"
    )  # fmt: skip


def test_mcfuser_itself_may_not_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "requires", requires)
    (found,) = packages.packages()
    assert found.level == "problem" and "not installed as a package" in found.sentence


def test_another_python_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    (here,) = packages.python()
    assert here.level == "ok" and here.facts["version"] == platform.python_version()
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.2")
    (old,) = packages.python()
    assert (
        old.level == "problem" and old.sentence == "this is Python 3.9.2, and mcfuser needs >=3.11"
    )
