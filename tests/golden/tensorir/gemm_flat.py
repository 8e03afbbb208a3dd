# gemm_1_64_64_32_32 as m.n(k,h) m=32 n=32 k=16 h=16
@T.prim_func(s_tir=True, private=True)
def kernel(A_arg: T.Buffer((2048,), "float32"), B_arg: T.Buffer((2048,), "float32"), D_arg: T.Buffer((2048,), "float32"), E_arg: T.Buffer((2048,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    A_flat = T.decl_buffer((2048,), "float32", data=A_arg.data)
    B_flat = T.decl_buffer((2048,), "float32", data=B_arg.data)
    D_flat = T.decl_buffer((2048,), "float32", data=D_arg.data)
    E_flat = T.decl_buffer((2048,), "float32", data=E_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        for t in T.parallel(2):
            m_t: T.let[T.int32] = t
            C_tile = T.alloc_buffer((1, 88, 32), "float32")
            E_tile = T.alloc_buffer((1, 88, 32), "float32")
            acc0 = T.alloc_buffer((11, 16), "float32")
            acc1 = T.alloc_buffer((11, 16), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for i1 in range(88):
                for j0 in range(2):
                    for j in T.vectorized(16):
                        E_tile[0, i1, j0 * 16 + j] = T.float32(0.0)
            for n_t in range(2):
                for i1 in range(88):
                    for j0 in range(2):
                        for j in T.vectorized(16):
                            C_tile[0, i1, j0 * 16 + j] = T.float32(0.0)
                for k_t in range(2):
                    for i0 in range(4):
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc0[i, j] = C_tile[0, i0 * 8 + i, j]
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc1[i, j] = C_tile[0, i0 * 8 + i, 16 + j]
                        for k_i in range(16):
                            for i in T.unroll(8):
                                for j in T.vectorized(16):
                                    acc0[i, j] = acc0[i, j] + A_flat[(m_t * 32 + i0 * 8 + i) * 32 + k_t * 16 + k_i] * B_flat[(k_t * 16 + k_i) * 64 + n_t * 32 + j]
                                for j in T.vectorized(16):
                                    acc1[i, j] = acc1[i, j] + A_flat[(m_t * 32 + i0 * 8 + i) * 32 + k_t * 16 + k_i] * B_flat[(k_t * 16 + k_i) * 64 + n_t * 32 + 16 + j]
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                C_tile[0, i0 * 8 + i, j] = acc0[i, j]
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                C_tile[0, i0 * 8 + i, 16 + j] = acc1[i, j]
                for h_t in range(2):
                    for i0 in range(3):
                        for i in T.unroll(11):
                            for j in T.vectorized(16):
                                acc0[i, j] = E_tile[0, i0 * 11 + i, h_t * 16 + j]
                        for n_i in range(32):
                            for i in T.unroll(11):
                                for j in T.vectorized(16):
                                    acc0[i, j] = acc0[i, j] + C_tile[0, i0 * 11 + i, n_i] * D_flat[(n_t * 32 + n_i) * 32 + h_t * 16 + j]
                        for i in T.unroll(11):
                            for j in T.vectorized(16):
                                E_tile[0, i0 * 11 + i, h_t * 16 + j] = acc0[i, j]
            for m_i in range(32):
                for h_v in range(2):
                    for h_l in T.vectorized(16):
                        E_flat[(m_t * 32 + m_i) * 32 + h_v * 16 + h_l] = E_tile[0, m_i, h_v * 16 + h_l]
