# gated as mn.k, tiles m=192 n=64 k=64
#
#   G[m, n] = sum[k] X[m, k] * W[k, n]
#   U[m, n] = sum[k] X[m, k] * V[k, n]
#   Y[m, n] = G[m, n] / (1.0 + exp(-G[m, n])) * U[m, n]

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Triton 3.9 has renamed them
fetch = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
put = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


TILE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
ROWS = gl.constexpr(gl.SliceLayout(1, TILE))
COLUMNS = gl.constexpr(gl.SliceLayout(0, TILE))


@gluon.jit
def gated_groups_loads(
    m_start,
    n_start,
    X_map,
    W_map,
    V_map,
    X_tile,
    X_full,
    X_empty,
    W_tile,
    W_full,
    W_empty,
    V_tile,
    V_full,
    V_empty,
):
    iteration = 0
    for k_start in range(0, 512, 64):
        slot = iteration % 2
        phase = iteration // 2 % 2
        for group in gl.static_range(3):
            mbarrier.wait(X_empty.index(slot * 3 + group), 1 - phase)
            mbarrier.expect(X_full.index(slot * 3 + group), 8192)
            fetch(
                X_map,
                [m_start + group * 64, k_start],
                X_full.index(slot * 3 + group),
                X_tile.index(slot * 3 + group),
            )
        mbarrier.wait(W_empty.index(slot), 1 - phase)
        mbarrier.expect(W_full.index(slot), 8192)
        fetch(W_map, [k_start, n_start], W_full.index(slot), W_tile.index(slot))
        mbarrier.wait(V_empty.index(slot), 1 - phase)
        mbarrier.expect(V_full.index(slot), 8192)
        fetch(V_map, [k_start, n_start], V_full.index(slot), V_tile.index(slot))
        iteration += 1


@gluon.jit
def gated_groups_rows(
    group: gl.constexpr,
    m_start,
    n_start,
    Y_ptr,
    X_tile,
    X_full,
    X_empty,
    W_tile,
    W_full,
    W_empty,
    V_tile,
    V_full,
    V_empty,
):
    m_start = m_start + group * 64
    m = m_start + gl.arange(0, 64, ROWS)
    m_in = m < 512
    n = n_start + gl.arange(0, 64, COLUMNS)
    G = gl.zeros((64, 64), gl.float32, TILE)
    U = gl.zeros((64, 64), gl.float32, TILE)
    iteration = gl.program_id(2)  # 0, which no compiler knows
    for k_start in range(0, 512, 64):
        slot = iteration % 2
        phase = iteration // 2 % 2
        mbarrier.wait(X_full.index(slot * 3 + group), phase)
        mbarrier.wait(W_full.index(slot), phase)
        G = hopper.warpgroup_mma(
            X_tile.index(slot * 3 + group), W_tile.index(slot), G, is_async=True
        )
        G = hopper.warpgroup_mma_wait(0, deps=(G,))
        mbarrier.arrive(W_empty.index(slot), count=1)
        mbarrier.wait(V_full.index(slot), phase)
        U = hopper.warpgroup_mma(
            X_tile.index(slot * 3 + group), V_tile.index(slot), U, is_async=True
        )
        U = hopper.warpgroup_mma_wait(0, deps=(U,))
        mbarrier.arrive(X_empty.index(slot * 3 + group), count=1)
        mbarrier.arrive(V_empty.index(slot), count=1)
        iteration += 1
    Y = G / (1.0 + gl.exp(-G)) * U
    gl.store(Y_ptr + m[:, None] * 256 + n[None, :], Y.to(gl.bfloat16), mask=m_in[:, None])


@gluon.jit
def gated_groups(Y_ptr, X_map, W_map, V_map):
    pid = gl.program_id(0)
    n_start = pid % 4 * 64
    m_start = pid // 4 * 192
    X_tile = gl.allocate_shared_memory(gl.bfloat16, [6, 64, 64], X_map.layout)
    X_full = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    X_empty = gl.allocate_shared_memory(gl.int64, [6, 1], mbarrier.MBarrierLayout())
    W_tile = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], W_map.layout)
    W_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    W_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    V_tile = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], V_map.layout)
    V_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    V_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(6):
        mbarrier.init(X_full.index(each), count=1)
        mbarrier.init(X_empty.index(each), count=1)
    for each in gl.static_range(2):
        mbarrier.init(W_full.index(each), count=1)
        mbarrier.init(W_empty.index(each), count=3)
        mbarrier.init(V_full.index(each), count=1)
        mbarrier.init(V_empty.index(each), count=3)
    hopper.fence_async_shared()
    gl.warp_specialize(
        [
            (gated_groups_rows, (
                0, m_start, n_start, Y_ptr, X_tile, X_full, X_empty, W_tile, W_full, W_empty,
                V_tile, V_full, V_empty)),
            (gated_groups_rows, (
                1, m_start, n_start, Y_ptr, X_tile, X_full, X_empty, W_tile, W_full, W_empty,
                V_tile, V_full, V_empty)),
            (gated_groups_rows, (
                2, m_start, n_start, Y_ptr, X_tile, X_full, X_empty, W_tile, W_full, W_empty,
                V_tile, V_full, V_empty)),
            (gated_groups_loads, (
                m_start, n_start, X_map, W_map, V_map, X_tile, X_full, X_empty, W_tile, W_full,
                W_empty, V_tile, V_full, V_empty)),
        ],
        [4, 4, 1],
        [160, 160, 24],
    )
