"""TensorIR for a CPU: a schedule's statements as TVMScript text.

The grid is one parallel loop; a block's tiles are scratch in its core's cache; every pass over a
tile is vectorised along its last axis. Loops run over positions inside the extents, so no pass
needs a mask. Loads copy nothing unless a product needs its right operand in panels.
"""

from mcfuser.codegen.tensorir.function import generate
from mcfuser.codegen.tensorir.parameters import shaped
from mcfuser.codegen.tensorir.record import (
    check_parameters,
    from_record,
    to_record,
    with_shapes,
)
from mcfuser.codegen.tensorir.source import Panels, TensorirSource

__all__ = [
    "Panels", "TensorirSource", "check_parameters", "from_record", "generate", "shaped",
    "to_record", "with_shapes",
]  # fmt: skip
