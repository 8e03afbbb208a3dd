"""Rounds what tensor cores multiply as TF32: they would cut a float32 off after ten bits, which
makes every product smaller than it is."""

from __future__ import annotations

from mcfuser.codegen.triton.frame import TAB

ROUND = "tf32"
"""The function that a source calls."""
ROUNDING = (
    "",
    "@triton.jit",
    f"def {ROUND}(x):",
    f"{TAB}return tl.inline_asm_elementwise(",
    f'{TAB}{TAB}"cvt.rna.tf32.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1',
    f"{TAB})",
    "",
)
"""Its definition: to the nearest number, a half away from zero; infinities and NaN stay."""
