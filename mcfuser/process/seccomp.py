"""A filter of system calls (seccomp) that keeps a process from the network."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22
_FILTER = 2  # a program decides about each call
_ALLOW, _REFUSE, _EACCES = 0x7FFF0000, 0x00050000, 13
_LOAD, _EQUAL, _LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF: a word, jumps, the verdict
_AF_UNIX = 1

# By machine: its name in a call's record, the number of `socket`, and those of what starts a
# program (execve, execveat) or looks into another process (ptrace, process_vm_readv and writev).
_CALLS = {
    "x86_64": (0xC000003E, 41, (59, 322, 101, 310, 311)),
    "aarch64": (0xC00000B7, 198, (221, 281, 117, 270, 271)),
}
_EVERYWHERE = (425, 438)  # io_uring_setup, which makes sockets too, and pidfd_getfd
_FOREIGN = 0x40000000  # numbers from here on are another set of the same calls


def forbid_network() -> bool:
    """Forbids this process, for good, to open sockets other than local ones, to start programs, and
    to inspect other processes. False where the system has no such filter: it needs Linux on x86-64
    or Arm."""
    known = _CALLS.get(os.uname().machine) if sys.platform == "linux" else None
    if known is None:
        return False
    machine, socket, refused = known
    steps = _program(machine, socket, (*refused, *_EVERYWHERE))
    code = ctypes.create_string_buffer(b"".join(steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    refused_by_system = libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(program), 0, 0)
    return not refused_by_system


def _program(machine: int, socket: int, refused: tuple[int, ...]) -> list[bytes]:
    """The filter as BPF instructions. The record of a call has its number at byte 0, the machine at
    byte 4 and its first argument at byte 16."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    last = len(refused) + 3  # steps from a test of the first number to the refusal
    tests = [step(_EQUAL, number, last - i) for i, number in enumerate(refused)]
    return [
        step(_LOAD, 4),
        step(_EQUAL, machine, no=last + 3),
        step(_LOAD, 0),
        step(_LEAST, _FOREIGN, last + 1),
        *tests,
        step(_EQUAL, socket, no=2),
        step(_LOAD, 16),
        step(_EQUAL, _AF_UNIX, no=1),
        step(_RETURN, _ALLOW),
        step(_RETURN, _REFUSE | _EACCES),
    ]
