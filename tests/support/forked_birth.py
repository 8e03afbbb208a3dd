"""Children that begin with TVM loaded: its import takes longer than most of what tests ask them.

A process that has loaded what they load, and does nothing else, the twin of who starts them, is
cloned for each. The clone is a child of who asked for it (clone(2), CLONE_PARENT), as if that had
started a Python, and runs the module's `main`.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from mcfuser.process import supervised
from mcfuser.process.child import ALONE
from mcfuser.process.load import leave_out_torch, load

FORKED = frozenset({
    "tests.support.hasty_compile", "tests.support.hasty_command", "tests.support.serve_slowly",
    "tests.support.hasty_import", "mcfuser.measure.child", "mcfuser_service.worker_child",
    "mcfuser.runtime.runner",
})  # fmt: skip
"""The modules whose processes are cloned: those that a Python is told to run, and those that
mcfuser.process.birth and mcfuser.process.confinement are."""
_LOADED = (
    "mcfuser_service.compile_child", "mcfuser_service.import_child", "mcfuser_service.serve",
    "mcfuser_service.worker_child", "mcfuser.measure.child", "mcfuser.backends.cpu.runner",
    "tests.support.slow_compiler", "tests.support.late_imports",
)  # fmt: skip
_LOADED_TO_RUN = ("mcfuser.process.birth", "mcfuser.runtime.runner")
_WITHOUT_COMPILER = "TVM_USE_RUNTIME_LIB"  # mcfuser.runtime.runner has it; its import is TVM's
_CLONE_PARENT = 0x8000
_CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine) if sys.platform == "linux" else None
"""The number of the system call. Without it every child starts afresh."""
_LARGEST = 1 << 20  # bytes of a request
_HIGH = 512  # file descriptors that come with a request are moved to numbers from here on
_STREAMS = 3
_ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_PATIENT = 600.0  # seconds until a twin has loaded what it loads, on a very busy machine


def install() -> None:
    """Has this process, which has loaded TVM and started no thread, keep a twin of itself, of which
    its children are clones. (OpenBLAS ends its own threads before a fork.)"""
    if _CLONE is None:
        return
    assert threading.active_count() == 1, "a fork would lack the other threads"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        control = fcntl.fcntl(theirs, fcntl.F_DUPFD, _HIGH)
        os.closerange(0, control)
        for _ in range(_STREAMS):
            os.open(os.devnull, os.O_RDWR)
        _serve(socket.socket(fileno=control))
    theirs.close()
    setattr(supervised, "Popen", popen_of(lambda _: ours))  # noqa: B010


def popen_of(
    twin: Callable[[Mapping[str, str]], socket.socket],
) -> type[subprocess.Popen[Any]]:
    """A Popen whose processes are clones of the twin at the other end of a socket, where they run
    one of FORKED. Which twin it is may depend on the environment of what is run."""
    lock = threading.Lock()
    signature = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]

    class ForkedPopen(subprocess.Popen[Any]):
        def _execute_child(self, arguments: list[str], *more: Any) -> None:
            if _CLONE is None or not FORKED.intersection(_modules(arguments)):
                super()._execute_child(arguments, *more)  # type: ignore[misc]
                return
            given = signature.bind(self, arguments, *more).arguments
            ends = given["p2cread"], given["c2pwrite"], given["errwrite"]
            streams = [end if end >= 0 else i for i, end in enumerate(ends)]
            passed = [*map(int, given["pass_fds"])]
            request = {
                "arguments": arguments[arguments.index("-m") + 1 :], "passed": passed,
                "environment": dict(given["env"]), "folder": given["cwd"] or os.getcwd(),
                "session": given["start_new_session"], "group": given["process_group"],
                "umask": _umask(),
            }  # fmt: skip
            with lock:
                channel = twin(request["environment"])
                channel.settimeout(_PATIENT)
                words = json.dumps(request, default=str).encode()
                socket.send_fds(channel, [words], [*streams, *passed])
                self.pid = int(channel.recv(_LARGEST))
            self._child_created = True
            self._close_pipe_fds(*(given[end] for end in _ENDS))  # type: ignore[attr-defined]

    return ForkedPopen


def _modules(arguments: list[str]) -> list[str]:
    """The module that a Python is told to run, and those that may be among its first arguments."""
    return arguments[arguments.index("-m") + 1 :][:4] if "-m" in arguments else []


def _umask() -> int:
    """This process's, which os.umask would change to tell."""
    status = Path("/proc/self/status").read_text()
    return int(next(x for x in status.splitlines() if x.startswith("Umask:")).split()[1], 8)


@cache
def _started(with_compiler: bool) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A twin of this process, which may have any number of threads: a new process, and its end of
    the socket. One without TVM's compiler runs modules, as users' processes do."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    loaded, more = (_LOADED, {}) if with_compiler else (_LOADED_TO_RUN, {_WITHOUT_COMPILER: "1"})
    with theirs:
        return ours, subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), *loaded],
            pass_fds=[theirs.fileno()], env={**os.environ, **ALONE, **more},
            stdin=subprocess.DEVNULL,
        )  # fmt: skip


ForkedPopen = popen_of(lambda environment: _started(_WITHOUT_COMPILER not in environment)[0])


def main() -> None:
    leave_out_torch()
    for name in sys.argv[2:]:
        load(name)
    _serve(socket.socket(fileno=int(sys.argv[1])))


def _serve(control: socket.socket) -> NoReturn:
    """Clones this process for each request, until whoever asks has ended."""
    while True:
        message, descriptors, *_ = socket.recv_fds(control, _LARGEST, 16)
        if not message:
            os._exit(0)
        if _clone() == 0:
            _live(json.loads(message), descriptors, control)
        for one in descriptors:
            os.close(one)


def _clone() -> int:
    """A fork whose parent is this process's parent: 0 in the new process, its id in this one."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    pid: int = python.syscall(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "a process cannot be cloned")
    return pid


def _live(request: dict[str, Any], descriptors: list[int], control: socket.socket) -> NoReturn:
    """Runs in a clone: what a new Python with these arguments would do. It tells its id once it has
    its group: who kills the group before there is one would wait for a process that lives on."""
    status = 1
    try:
        if request["session"]:
            os.setsid()
        elif request["group"] >= 0:
            os.setpgid(0, request["group"])
        control.send(str(os.getpid()).encode())
        control.close()
        high = [fcntl.fcntl(one, fcntl.F_DUPFD, _HIGH) for one in descriptors]
        os.closerange(_STREAMS, _HIGH)
        for one, number in zip(high, [*range(_STREAMS), *request["passed"]], strict=True):
            os.dup2(one, number)
            os.close(one)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.umask(request["umask"])
        tempfile.tempdir = None
        sys.argv = request["arguments"]
        main: Callable[[], object] = load(sys.argv[0]).main
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
