# gemm_2_40_77_20_33 as mh.nk m=16 n=32 k=20 h=33
@T.prim_func(s_tir=True, private=True)
def kernel(A_arg: T.Buffer((1600,), "float32"), B_arg: T.Buffer((3080,), "float32"), D_arg: T.Buffer((5082,), "float32"), E_arg: T.Buffer((2640,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    A_flat = T.decl_buffer((1600,), "float32", data=A_arg.data)
    B_flat = T.decl_buffer((3080,), "float32", data=B_arg.data)
    D_flat = T.decl_buffer((5082,), "float32", data=D_arg.data)
    E_flat = T.decl_buffer((2640,), "float32", data=E_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        for t in T.parallel(6):
            b_t: T.let[T.int32] = t // 3
            m_t: T.let[T.int32] = t % 3
            B_panels = T.alloc_buffer((1, 20, 32), "float32")
            D_panels = T.alloc_buffer((3, 32, 16), "float32")
            C_tile = T.alloc_buffer((1, 16, 32), "float32")
            E_tile = T.alloc_buffer((1, 16, 48), "float32")
            acc0 = T.alloc_buffer((8, 16), "float32")
            acc1 = T.alloc_buffer((8, 16), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for i1 in range(16):
                for j0 in range(3):
                    for j in T.vectorized(16):
                        E_tile[0, i1, j0 * 16 + j] = T.float32(0.0)
            for n_t in range(3):
                for p in range((T.min(32, 77 - (n_t * 32)) + 31) // 32):
                    for k_i in range(20):
                        for j in range(T.min(32, 77 - (n_t * 32))):
                            B_panels[p, k_i, j] = B_flat[b_t * 1540 + k_i * 77 + n_t * 32 + p * 32 + j]
                    for k_i in range(20):
                        for j in range(32 - (T.min(32, 77 - (n_t * 32)))):
                            B_panels[p, k_i, T.min(32, 77 - (n_t * 32)) + j] = T.float32(0)
                for j0 in range((T.min(32, 77 - (n_t * 32)) + 31) // 32):
                    for i0 in range((T.min(16, 40 - (m_t * 16)) + 7) // 8):
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc0[i, j] = T.float32(0)
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc1[i, j] = T.float32(0)
                        for k_i in range(20):
                            for i in T.unroll(8):
                                for j in T.vectorized(16):
                                    acc0[i, j] = acc0[i, j] + A_flat[b_t * 800 + (m_t * 16 + T.min(i0 * 8 + i, T.min(16, 40 - (m_t * 16)) - 1)) * 20 + k_i] * B_panels[j0, k_i, j]
                                for j in T.vectorized(16):
                                    acc1[i, j] = acc1[i, j] + A_flat[b_t * 800 + (m_t * 16 + T.min(i0 * 8 + i, T.min(16, 40 - (m_t * 16)) - 1)) * 20 + k_i] * B_panels[j0, k_i, 16 + j]
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                C_tile[0, i0 * 8 + i, j0 * 32 + j] = acc0[i, j]
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                C_tile[0, i0 * 8 + i, j0 * 32 + 16 + j] = acc1[i, j]
                for p in range(3):
                    for n_i in range(T.min(32, 77 - (n_t * 32))):
                        for j in range(T.min(16, 33 - (p * 16))):
                            D_panels[p, n_i, j] = D_flat[b_t * 2541 + (n_t * 32 + n_i) * 33 + p * 16 + j]
                    for n_i in range(T.min(32, 77 - (n_t * 32))):
                        for j in range(16 - (T.min(16, 33 - (p * 16)))):
                            D_panels[p, n_i, T.min(16, 33 - (p * 16)) + j] = T.float32(0)
                for j0 in range(3):
                    for i0 in range((T.min(16, 40 - (m_t * 16)) + 7) // 8):
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc0[i, j] = E_tile[0, i0 * 8 + i, j0 * 16 + j]
                        for n_i in range(T.min(32, 77 - (n_t * 32))):
                            for i in T.unroll(8):
                                for j in T.vectorized(16):
                                    acc0[i, j] = acc0[i, j] + C_tile[0, i0 * 8 + i, n_i] * D_panels[j0, n_i, j]
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                E_tile[0, i0 * 8 + i, j0 * 16 + j] = acc0[i, j]
            for m_i in range(T.min(16, 40 - (m_t * 16))):
                for h_v in range(2):
                    for h_l in T.vectorized(16):
                        E_flat[b_t * 1320 + (m_t * 16 + m_i) * 33 + h_v * 16 + h_l] = E_tile[0, m_i, h_v * 16 + h_l]
                E_flat[b_t * 1320 + (m_t * 16 + m_i) * 33 + 32] = E_tile[0, m_i, 32]
