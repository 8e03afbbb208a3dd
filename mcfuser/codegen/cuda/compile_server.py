"""What compilers of GPU kernels share, loaded once and then forked (`mcfuser.process.forkserver`).

Triton makes a key of every byte of its own for each process that compiles, half a gigabyte, though
what is compiled here is kept nowhere; made here, it is made once.
"""

import contextlib

from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.experimental.gluon import _runtime  # noqa: F401
from triton.runtime.cache import triton_key

from mcfuser.codegen.cuda.cubin import Binary, KernelRequest, attempt
from mcfuser.space.statement import Illegal

with contextlib.suppress(Exception):  # what is wrong with Triton a compilation says in a sentence
    make_backend(GPUTarget("cuda", 90, 32)).hash()
    triton_key()


def answer(request: KernelRequest) -> Binary | Illegal:
    """The source compiled, or why not."""
    return attempt(request.source, request.arch)
