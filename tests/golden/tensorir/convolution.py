# chain as mni.kst m=3 i=13 n=32 k=4 s=1 t=2
@T.prim_func(s_tir=True, private=True)
def kernel(A_arg: T.Buffer((840,), "float32"), B_arg: T.Buffer((4608,), "float32"), E_arg: T.Buffer((3120,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    A_flat = T.decl_buffer((840,), "float32", data=A_arg.data)
    B_flat = T.decl_buffer((4608,), "float32", data=B_arg.data)
    E_flat = T.decl_buffer((3120,), "float32", data=E_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        for t in T.parallel(4):
            g_t: T.let[T.int32] = t // 2
            n_t: T.let[T.int32] = t % 2
            C_tile = T.alloc_buffer((1, 3, 14, 32), "float32")
            acc0 = T.alloc_buffer((7, 16), "float32")
            acc1 = T.alloc_buffer((7, 16), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for i1 in range(3):
                for i2 in range(14):
                    for j0 in range(2):
                        for j in T.vectorized(16):
                            C_tile[0, i1, i2, j0 * 16 + j] = T.float32(0.0)
            for k_t in range(2):
                for s_t in range(3):
                    for m_i in range(3):
                        for j0 in range((T.min(32, 40 - (n_t * 32)) + 31) // 32):
                            for i0 in range(2):
                                for i in T.unroll(7):
                                    for j in T.vectorized(16):
                                        acc0[i, j] = C_tile[0, m_i, i0 * 7 + i, j0 * 32 + j]
                                for i in T.unroll(7):
                                    for j in T.vectorized(16):
                                        acc1[i, j] = C_tile[0, m_i, i0 * 7 + i, j0 * 32 + 16 + j]
                                for k_i in range(T.min(4, 6 - (k_t * 4))):
                                    for t_i in range(2):
                                        for i in T.unroll(7):
                                            for j in T.vectorized(16):
                                                acc0[i, j] = acc0[i, j] + A_flat[g_t * 420 + (k_t * 4 + k_i) * 70 + m_i * 14 + T.min(i0 * 7 + i, 13 - 1) + s_t * 14 + t_i] * B_flat[(g_t * 2 + (n_t * 32) // 32 + j0) * 1152 + (((k_t * 4 + k_i) * 3 + s_t) * 2 + t_i) * 32 + j]
                                            for j in T.vectorized(16):
                                                acc1[i, j] = acc1[i, j] + A_flat[g_t * 420 + (k_t * 4 + k_i) * 70 + m_i * 14 + T.min(i0 * 7 + i, 13 - 1) + s_t * 14 + t_i] * B_flat[(g_t * 2 + (n_t * 32) // 32 + j0) * 1152 + (((k_t * 4 + k_i) * 3 + s_t) * 2 + t_i) * 32 + 16 + j]
                                for i in T.unroll(7):
                                    for j in T.vectorized(16):
                                        C_tile[0, m_i, i0 * 7 + i, j0 * 32 + j] = acc0[i, j]
                                for i in T.unroll(7):
                                    for j in T.vectorized(16):
                                        C_tile[0, m_i, i0 * 7 + i, j0 * 32 + 16 + j] = acc1[i, j]
            for m_i in range(3):
                for i_i in range(13):
                    for n_v in range((T.min(32, 40 - (n_t * 32))) // 16):
                        for n_l in T.vectorized(16):
                            E_flat[g_t * 1560 + m_i * 520 + i_i * 40 + n_t * 32 + n_v * 16 + n_l] = T.max(T.float32(0.0), C_tile[0, m_i, i_i, n_v * 16 + n_l])
                    for n_r in range((T.min(32, 40 - (n_t * 32))) % 16):
                        E_flat[g_t * 1560 + m_i * 520 + i_i * 40 + n_t * 32 + ((T.min(32, 40 - (n_t * 32))) // 16) * 16 + n_r] = T.max(T.float32(0.0), C_tile[0, m_i, i_i, ((T.min(32, 40 - (n_t * 32))) // 16) * 16 + n_r])
