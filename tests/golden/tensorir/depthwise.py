# chain as miks m=5 i=21 k=3 s=3
@T.prim_func(s_tir=True, private=True)
def kernel(A_arg: T.Buffer((1204,), "float32"), B_arg: T.Buffer((36,), "float32"), E_arg: T.Buffer((420,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    A_flat = T.decl_buffer((1204,), "float32", data=A_arg.data)
    B_flat = T.decl_buffer((36,), "float32", data=B_arg.data)
    E_flat = T.decl_buffer((420,), "float32", data=E_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        for t in T.parallel(4):
            b_t: T.let[T.int32] = t
            C_tile = T.alloc_buffer((1, 5, 21), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for m_i in range(5):
                window_0 = T.alloc_buffer((1, 16), "float32")
                for l in T.vectorized(16):
                    window_0[0, l] = T.float32(0.0)
                for k_i in range(3):
                    for s_i in range(3):
                        for l in T.unroll(16):
                            window_0[0, l] = window_0[0, l] + (A_flat[b_t * 301 + m_i * 43 + l * 2 + k_i * 43 + s_i] * B_flat[b_t * 9 + k_i * 3 + s_i])
                for l in T.vectorized(16):
                    C_tile[0, m_i, l] = window_0[0, l]
                window_1 = T.alloc_buffer((1, 8), "float32")
                for l in T.vectorized(8):
                    window_1[0, l] = T.float32(0.0)
                for k_i in range(3):
                    for s_i in range(3):
                        for l in T.unroll(8):
                            window_1[0, l] = window_1[0, l] + (A_flat[b_t * 301 + m_i * 43 + (13 + l) * 2 + k_i * 43 + s_i] * B_flat[b_t * 9 + k_i * 3 + s_i])
                for l in T.vectorized(8):
                    C_tile[0, m_i, 13 + l] = window_1[0, l]
            for m_i in range(5):
                for i_v in range(1):
                    for i_l in T.vectorized(16):
                        E_flat[b_t * 105 + m_i * 21 + i_v * 16 + i_l] = T.max(T.float32(0.0), C_tile[0, m_i, i_v * 16 + i_l])
                for i_l in T.vectorized(8):
                    E_flat[b_t * 105 + m_i * 21 + 13 + i_l] = T.max(T.float32(0.0), C_tile[0, m_i, 13 + i_l])
