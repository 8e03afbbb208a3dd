"""Which test files pytest-xdist runs in one process."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

SHARING = {
    "a fork server of commands": (
        "cli/test_command.py", "cli/test_compile.py", "cli/test_devices.py", "cli/test_keys.py",
        "cli/test_run.py", "cli/test_sign.py", "cli/test_tune.py", "cli/test_verify.py",
        "hostile/test_hostile_live.py",
    ),
    "Triton and its fork server": (
        "benchmarks/test_shared_memory.py", "codegen/cuda/test_cubin.py",
        "codegen/cuda/test_module.py", "codegen/cuda/test_pool.py",
        "codegen/triton/hopper/test_groups.py", "codegen/triton/hopper/test_tensor_map.py",
        "codegen/triton/test_golden.py", "codegen/triton/test_run_time.py",
        "codegen/triton/test_split.py", "lowering/triton/test_resources.py", "tune/test_search.py",
        "tune/test_tuner.py",
    ),
    "a database server": ("benchmarks/test_store_scale.py", "db/", "service/test_missed.py"),
    "a browser": (
        "batch/test_web_live.py", "service/test_page_cache_live.py", "service/test_page_live.py",
    ),
}  # fmt: skip
"""What takes seconds to start, and the files and folders, below `tests`, whose tests use it."""


class SharedScheduling(LoadFileScheduling):  # type: ignore[misc]
    """Gives every file to one process, as --dist loadfile does, and files that share something to
    the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        below = file.removeprefix("tests/")
        return next((what for what, used in SHARING.items() if below.startswith(used)), file)
