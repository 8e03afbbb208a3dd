# causal as mh.nk, tiles m=128 n=64 k=64 h=64
#
#   S[b, m, n] = sum[k] Q[b, m, k] * K[b, n, k]
#   S_inside[b, m, n] = select(n <= m, S[b, m, n], -3.4028234663852886e+38)
#   R[b, m] = max[n] S_inside[b, m, n] * 0.432808512266689 where n <= m
#   P[b, m, n] = exp2(S_inside[b, m, n] * 0.432808512266689 - select(R[b, m] <=
#       -7.363854809961972e+37, 0.0, R[b, m]))
#   Z[b, m] = sum[n] P[b, m, n] where n <= m
#   U[b, m, h] = sum[n] float16(P[b, m, n]) * V[b, n, h] where n <= m
#   O[b, m, h] = select(U[b, m, h] == 0.0, 0.0, U[b, m, h] / Z[b, m])

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Triton 3.9 has renamed them
fetch = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
put = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global

LOWEST = gl.constexpr(-3.4028234663852886e38)


TILE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
ROWS = gl.constexpr(gl.SliceLayout(1, TILE))
COLUMNS = gl.constexpr(gl.SliceLayout(0, TILE))
LEFT = gl.constexpr(gl.DotOperandLayout(0, TILE, 2))


@gluon.jit
def lanes(x):
    # a row lies in four threads, two neighbours at a time; each adds up what it has
    return gl.sum(gl.sum(x.reshape([x.shape[0], x.shape[1] // 8, 4, 2]), 3), 1)


@gluon.jit
def by_lane(x, like):
    return gl.convert_layout(x, gl.SliceLayout(1, like.type.layout))[:, None]


@gluon.jit
def attention_groups_loads(
    b,
    m_start,
    n_end,
    Q_map,
    K_map,
    V_map,
    Q_tile,
    Q_full,
    K_tile,
    K_full,
    K_empty,
    V_tile,
    V_full,
    V_empty,
):
    for group in gl.static_range(2):
        mbarrier.expect(Q_full.index(group), 8192)
        fetch(Q_map, [b, m_start + group * 64, 0], Q_full.index(group), Q_tile.index(group))
    iteration = 0
    for n_start in range(0, n_end, 64):
        slot = iteration % 2
        phase = iteration // 2 % 2
        mbarrier.wait(K_empty.index(slot), 1 - phase)
        mbarrier.expect(K_full.index(slot), 8192)
        fetch(K_map, [b, n_start, 0], K_full.index(slot), K_tile.index(slot))
        mbarrier.wait(V_empty.index(slot), 1 - phase)
        mbarrier.expect(V_full.index(slot), 8192)
        fetch(V_map, [b, n_start, 0], V_full.index(slot), V_tile.index(slot))
        iteration += 1


@gluon.jit
def attention_groups_rows(
    group: gl.constexpr,
    b,
    m_start,
    n_end,
    O_map,
    Q_tile,
    Q_full,
    K_tile,
    K_full,
    K_empty,
    V_tile,
    V_full,
    V_empty,
):
    m_start = m_start + group * 64
    m = m_start + gl.arange(0, 64, ROWS)
    mbarrier.wait(Q_full.index(group), 0)
    R = gl.full((64,), LOWEST, gl.float32, ROWS)
    Z = lanes(gl.zeros((64, 64), gl.float32, TILE))
    U = gl.zeros((64, 64), gl.float32, TILE)
    iteration = gl.program_id(2)  # 0, which no compiler knows
    slot = iteration % 2
    phase = iteration // 2 % 2
    n = gl.arange(0, 64, COLUMNS)
    mbarrier.wait(K_full.index(slot), phase)
    S = hopper.warpgroup_mma(
        Q_tile.index(group).reshape([64, 64]),
        K_tile.index(slot).reshape([64, 64]).permute((1, 0)),
        gl.zeros((64, 64), gl.float32, TILE),
        use_acc=False,
        is_async=True,
    )
    S = hopper.warpgroup_mma_wait(0, deps=(S,))
    mbarrier.arrive(K_empty.index(slot), count=1)
    S_inside = gl.where(n[None, :] <= m[:, None], S, LOWEST)
    R_old = R
    R = gl.maximum(R, gl.max(S_inside, 1) * 0.432808512266689)
    Z = by_lane(gl.exp2(R_old - R), Z) * Z
    P_part_1 = S_inside * 0.432808512266689 - gl.where(R <= -7.363854809961972e+37, 0.0, R)[:, None]
    P = gl.exp2(P_part_1)
    Z += lanes(P)
    U_left = gl.convert_layout(P.to(gl.float16), LEFT)
    iteration += 1
    n_inside = (m_start + 1) // 64 * 64
    for n_start in range(64, n_end, 64):
        slot = iteration % 2
        phase = iteration // 2 % 2
        slot_before = (iteration - 1) % 2
        phase_before = (iteration - 1) // 2 % 2
        n = n_start + gl.arange(0, 64, COLUMNS)
        mbarrier.wait(K_full.index(slot), phase)
        S = hopper.warpgroup_mma(
            Q_tile.index(group).reshape([64, 64]),
            K_tile.index(slot).reshape([64, 64]).permute((1, 0)),
            gl.zeros((64, 64), gl.float32, TILE),
            use_acc=False,
            is_async=True,
        )
        mbarrier.wait(V_full.index(slot_before), phase_before)
        U = hopper.warpgroup_mma(
            U_left, V_tile.index(slot_before).reshape([64, 64]), U, is_async=True
        )
        S = hopper.warpgroup_mma_wait(1, deps=(S,))
        mbarrier.arrive(K_empty.index(slot), count=1)
        if n_start < n_inside:
            S_inside = S
        else:
            S_inside = gl.where(n[None, :] <= m[:, None], S, LOWEST)
        R_old = R
        R = gl.maximum(R, gl.max(S_inside, 1) * 0.432808512266689)
        Z = by_lane(gl.exp2(R_old - R), Z) * Z
        P_part_1 = (
            S_inside * 0.432808512266689 - gl.where(R <= -7.363854809961972e+37, 0.0, R)[:, None]
        )
        P = gl.exp2(P_part_1)
        Z += lanes(P)
        U, U_left = hopper.warpgroup_mma_wait(0, deps=(U, U_left))
        mbarrier.arrive(V_empty.index(slot_before), count=1)
        U = gl.exp2(R_old - R)[:, None] * U
        U_left = gl.convert_layout(P.to(gl.float16), LEFT)
        iteration += 1
    slot_before = (iteration - 1) % 2
    phase_before = (iteration - 1) // 2 % 2
    mbarrier.wait(V_full.index(slot_before), phase_before)
    U = hopper.warpgroup_mma(U_left, V_tile.index(slot_before).reshape([64, 64]), U, is_async=True)
    U, U_left = hopper.warpgroup_mma_wait(0, deps=(U, U_left))
    mbarrier.arrive(V_empty.index(slot_before), count=1)
    Z = gl.convert_layout(gl.sum(Z, 1), ROWS)
    O = gl.where(U == 0.0, 0.0, U / Z[:, None])
    Q_tile.index(group).reshape([64, 64]).store(O.to(gl.float16))
    hopper.fence_async_shared()
    put(O_map, [b, m_start, 0], Q_tile.index(group))
    tma.store_wait(0)


@gluon.jit
def attention_groups(Q_map, K_map, V_map, O_map):
    pid = gl.program_id(0)
    b = pid % 12
    m_start = (3 - pid // 12) * 128
    n_end = gl.minimum(m_start + 128, 256)
    Q_tile = gl.allocate_shared_memory(gl.float16, [2, 1, 64, 64], Q_map.layout)
    Q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    K_tile = gl.allocate_shared_memory(gl.float16, [2, 1, 64, 64], K_map.layout)
    K_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    K_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    V_tile = gl.allocate_shared_memory(gl.float16, [2, 1, 64, 64], V_map.layout)
    V_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    V_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(2):
        mbarrier.init(Q_full.index(each), count=1)
        mbarrier.init(K_full.index(each), count=1)
        mbarrier.init(K_empty.index(each), count=2)
        mbarrier.init(V_full.index(each), count=1)
        mbarrier.init(V_empty.index(each), count=2)
    hopper.fence_async_shared()
    gl.warp_specialize(
        [
            (attention_groups_rows, (
                0, b, m_start, n_end, O_map, Q_tile, Q_full, K_tile, K_full, K_empty, V_tile,
                V_full, V_empty)),
            (attention_groups_rows, (
                1, b, m_start, n_end, O_map, Q_tile, Q_full, K_tile, K_full, K_empty, V_tile,
                V_full, V_empty)),
            (attention_groups_loads, (
                b, m_start, n_end, Q_map, K_map, V_map, Q_tile, Q_full, K_tile, K_full, K_empty,
                V_tile, V_full, V_empty)),
        ],
        [4, 1],
        [240, 24],
    )
