# gemm_2_64_64_32_32 as mh.nk m=32 n=32 k=32 h=32
@T.prim_func(s_tir=True, private=True)
def kernel(A_arg: T.handle, B_arg: T.handle, D_arg: T.handle, E_arg: T.handle):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    b_extent = T.int32()
    n_extent = T.int32()
    A_in = T.match_buffer(A_arg, (b_extent, 64, 32), "float32")
    B_in = T.match_buffer(B_arg, (b_extent, 32, n_extent), "float32")
    D_in = T.match_buffer(D_arg, (b_extent, n_extent, 32), "float32")
    E_in = T.match_buffer(E_arg, (b_extent, 64, 32), "float32")
    assert T.And(b_extent >= 1, b_extent <= 8), "axis 'b' needs an extent from 1 to 8"
    b_size: T.let[T.int32] = T.min(T.max(b_extent, 1), 8)
    assert T.And(n_extent >= 1, n_extent <= 100), "axis 'n' needs an extent from 1 to 100"
    n_size: T.let[T.int32] = T.min(T.max(n_extent, 1), 100)
    A_flat = T.decl_buffer((b_extent * 64 * 32,), "float32", data=A_in.data)
    B_flat = T.decl_buffer((b_extent * 32 * n_extent,), "float32", data=B_in.data)
    D_flat = T.decl_buffer((b_extent * n_extent * 32,), "float32", data=D_in.data)
    E_flat = T.decl_buffer((b_extent * 64 * 32,), "float32", data=E_in.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        E_parts = T.alloc_buffer((b_size * 2, 2, 1, 32, 32), "float32")
        for p in T.parallel(b_size * 2 * 2):
            t: T.let[T.int32] = p // 2
            part: T.let[T.int32] = p % 2
            b_t: T.let[T.int32] = t // 2
            m_t: T.let[T.int32] = t % 2
            B_panels = T.alloc_buffer((1, 32, 32), "float32")
            C_tile = T.alloc_buffer((1, 32, 32), "float32")
            E_tile = T.alloc_buffer((1, 32, 32), "float32")
            acc0 = T.alloc_buffer((8, 16), "float32")
            acc1 = T.alloc_buffer((8, 16), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for i1 in range(32):
                for j0 in range(2):
                    for j in T.vectorized(16):
                        E_tile[0, i1, j0 * 16 + j] = T.float32(0.0)
            for n_t in range(part * (((n_size + 31) // 32 + 1) // 2), T.max(part * (((n_size + 31) // 32 + 1) // 2), T.min((n_size + 31) // 32, part * (((n_size + 31) // 32 + 1) // 2) + ((n_size + 31) // 32 + 1) // 2))):
                for p in range((T.min(32, n_size - (n_t * 32)) + 31) // 32):
                    for k_i in range(32):
                        for j in range(T.min(32, n_size - (n_t * 32))):
                            B_panels[p, k_i, j] = B_flat[b_t * 32 * n_size + k_i * n_size + n_t * 32 + p * 32 + j]
                    for k_i in range(32):
                        for j in range(32 - (T.min(32, n_size - (n_t * 32)))):
                            B_panels[p, k_i, T.min(32, n_size - (n_t * 32)) + j] = T.float32(0)
                for j0 in range((T.min(32, n_size - (n_t * 32)) + 31) // 32):
                    for i0 in range(4):
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc0[i, j] = T.float32(0)
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc1[i, j] = T.float32(0)
                        for k_i in range(32):
                            for i in T.unroll(8):
                                for j in T.vectorized(16):
                                    acc0[i, j] = acc0[i, j] + A_flat[b_t * 2048 + (m_t * 32 + i0 * 8 + i) * 32 + k_i] * B_panels[j0, k_i, j]
                                for j in T.vectorized(16):
                                    acc1[i, j] = acc1[i, j] + A_flat[b_t * 2048 + (m_t * 32 + i0 * 8 + i) * 32 + k_i] * B_panels[j0, k_i, 16 + j]
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                C_tile[0, i0 * 8 + i, j0 * 32 + j] = acc0[i, j]
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                C_tile[0, i0 * 8 + i, j0 * 32 + 16 + j] = acc1[i, j]
                for i0 in range(4):
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            acc0[i, j] = E_tile[0, i0 * 8 + i, j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            acc1[i, j] = E_tile[0, i0 * 8 + i, 16 + j]
                    for n_i in range(T.min(32, n_size - (n_t * 32))):
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc0[i, j] = acc0[i, j] + C_tile[0, i0 * 8 + i, n_i] * D_flat[b_t * n_size * 32 + (n_t * 32 + n_i) * 32 + j]
                            for j in T.vectorized(16):
                                acc1[i, j] = acc1[i, j] + C_tile[0, i0 * 8 + i, n_i] * D_flat[b_t * n_size * 32 + (n_t * 32 + n_i) * 32 + 16 + j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            E_tile[0, i0 * 8 + i, j] = acc0[i, j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            E_tile[0, i0 * 8 + i, 16 + j] = acc1[i, j]
            for m_i in range(32):
                for h_v in range(2):
                    for h_l in T.vectorized(16):
                        E_parts[t, part, 0, m_i, h_v * 16 + h_l] = E_tile[0, m_i, h_v * 16 + h_l]
        for t in T.parallel(b_size * 2):
            b_t: T.let[T.int32] = t // 2
            m_t: T.let[T.int32] = t % 2
            E_tile = T.alloc_buffer((1, 32, 32), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for i1 in range(32):
                for j0 in range(2):
                    for j in T.vectorized(16):
                        E_tile[0, i1, j0 * 16 + j] = T.float32(0.0)
            for part in range(2):
                for m_i in range(32):
                    for h_v in range(2):
                        for h_l in T.vectorized(16):
                            E_tile[0, m_i, h_v * 16 + h_l] = (E_tile[0, m_i, h_v * 16 + h_l] + E_parts[t, part, 0, m_i, h_v * 16 + h_l])
            for m_i in range(32):
                for h_v in range(2):
                    for h_l in T.vectorized(16):
                        E_flat[b_t * 2048 + (m_t * 32 + m_i) * 32 + h_v * 16 + h_l] = E_tile[0, m_i, h_v * 16 + h_l]
