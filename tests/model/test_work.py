"""What a chain computes and moves."""

from __future__ import annotations

from dataclasses import replace

from mcfuser.chain import attention, flops, gemm, parts
from mcfuser.device import Device
from mcfuser.devices.catalogue import CATALOGUE
from mcfuser.model.work import chain_work

H200 = CATALOGUE["nvidia/h200"]


def test_a_product_has_two_operations_for_each_position() -> None:
    (first, _) = parts(gemm(3, 64, 32, 16, 8, "float16"))
    work = chain_work(first, H200)
    assert work.operations == flops(first) == 2 * 3 * 64 * 32 * 16
    assert work.bytes == 2 * 3 * (64 * 16 + 16 * 32 + 64 * 32)
    assert (work.peak, work.bandwidth) == (H200.throughput("float16"), H200.bandwidth)
    assert work.to_json() == {
        "operations": work.operations, "bytes": work.bytes, "peak": work.peak,
        "bandwidth": work.bandwidth,
    }  # fmt: skip


def test_a_chain_moves_what_it_reads_and_writes_and_not_what_it_keeps() -> None:
    chain = attention(2, 128, 64, 32, 16, "float16")
    work = chain_work(chain, H200)
    assert work.bytes == 2 * 2 * (128 * 32 + 64 * 32 + 64 * 16 + 128 * 16)
    assert work.bytes < sum(chain_work(piece, H200).bytes for piece in parts(chain))


def test_maps_and_reductions_count_too() -> None:
    """X = S * c, R = max, P = exp(X - R), Z = sum: 1, 1, 2 and 1 for each score, and a division
    for each element of the output."""
    chain = attention(2, 128, 64, 32, 16, "float16")
    scores, out = 2 * 128 * 64, 2 * 128 * 16
    assert chain_work(chain, H200).operations == flops(chain) + 5 * scores + out


def test_a_matrix_unit_computes_a_float32_product_as_six() -> None:
    chain = gemm(1, 64, 64, 64, 64, "float32")
    cpu = Device("cpu", "cpu", "some", 2, (("float32", 1e11), ("matrix", 3e12)), 1e10, 1 << 20, 512)
    assert chain_work(chain, cpu).peak == 1e11
    assert chain_work(chain, replace(cpu, matrix="amx")).peak == 5e11
    assert chain_work(gemm(1, 64, 64, 64, 64, "bfloat16"), replace(cpu, matrix="amx")).peak == 3e12
