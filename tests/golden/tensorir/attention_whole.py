# attention_4_64_64_32_32 as mh.nk m=32 n=64 k=32 h=32
@T.prim_func(s_tir=True, private=True)
def kernel(Q_arg: T.Buffer((8192,), "float32"), K_arg: T.Buffer((8192,), "float32"), V_arg: T.Buffer((8192,), "float32"), O_arg: T.Buffer((8192,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    Q_flat = T.decl_buffer((8192,), "float32", data=Q_arg.data)
    K_flat = T.decl_buffer((8192,), "float32", data=K_arg.data)
    V_flat = T.decl_buffer((8192,), "float32", data=V_arg.data)
    O_flat = T.decl_buffer((8192,), "float32", data=O_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        for t in T.parallel(8):
            b_t: T.let[T.int32] = t // 2
            m_t: T.let[T.int32] = t % 2
            K_panels = T.alloc_buffer((2, 32, 32), "float32")
            X_tile = T.alloc_buffer((1, 32, 64), "float32")
            R_tile = T.alloc_buffer((1, 32), "float32")
            P_tile = T.alloc_buffer((1, 32, 64), "float32")
            Z_tile = T.alloc_buffer((1, 32), "float32")
            acc0 = T.alloc_buffer((8, 16), "float32")
            acc1 = T.alloc_buffer((8, 16), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for p in range(2):
                for j in range(32):
                    for k_v in range(2):
                        for k_l in T.vectorized(16):
                            K_panels[p, k_v * 16 + k_l, j] = K_flat[b_t * 2048 + (p * 32 + j) * 32 + k_v * 16 + k_l]
            for j0 in range(2):
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
                                acc0[i, j] = acc0[i, j] + Q_flat[b_t * 2048 + (m_t * 32 + i0 * 8 + i) * 32 + k_i] * K_panels[j0, k_i, j]
                            for j in T.vectorized(16):
                                acc1[i, j] = acc1[i, j] + Q_flat[b_t * 2048 + (m_t * 32 + i0 * 8 + i) * 32 + k_i] * K_panels[j0, k_i, 16 + j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            X_tile[0, i0 * 8 + i, j0 * 32 + j] = (acc0[i, j] * T.float32(0.17677669529663687))
                        for j in T.vectorized(16):
                            X_tile[0, i0 * 8 + i, j0 * 32 + 16 + j] = (acc1[i, j] * T.float32(0.17677669529663687))
            for j0 in range(2):
                for j in T.vectorized(16):
                    R_tile[0, j0 * 16 + j] = T.float32(-3.4028234663852886e+38)
            for m_i in range(32):
                for l in T.vectorized(16):
                    lane[l] = T.float32(-3.4028234663852886e+38)
                for n_v in range(4):
                    for n_l in T.vectorized(16):
                        lane[n_l] = T.max(lane[n_l], X_tile[0, m_i, n_v * 16 + n_l])
                for l in T.vectorized(8):
                    lane[l] = T.max(lane[l], lane[l + 8])
                for l in T.vectorized(4):
                    lane[l] = T.max(lane[l], lane[l + 4])
                for l in T.vectorized(2):
                    lane[l] = T.max(lane[l], lane[l + 2])
                R_tile[0, m_i] = T.max(R_tile[0, m_i], T.max(lane[0], lane[1]))
            for m_i in range(32):
                for n_v in range(4):
                    for n_l in T.vectorized(16):
                        x0: T.let[T.float32] = (X_tile[0, m_i, n_v * 16 + n_l] - R_tile[0, m_i])
                        x1: T.let[T.float32] = T.min(T.max(x0, T.float32(-88.0296919)), T.float32(88.3762626))
                        x2: T.let[T.float32] = T.floor(x1 * T.float32(1.4426950408889634) + T.float32(0.5))
                        x3: T.let[T.float32] = (x1 - x2 * T.float32(0.693359375)) - x2 * T.float32(-0.000212194440)
                        x4: T.let[T.float32] = (T.float32(1.0) + x3 * (T.float32(1.0) + x3 * (T.float32(0.5) + x3 * (T.float32(0.16666415333747864) + x3 * (T.float32(0.04166608303785324) + x3 * (T.float32(0.008375135250389576) + x3 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x2) + 127, 23))
                        x5: T.let[T.float32] = T.Select(x0 <= T.float32(88.3762626), x4, x0 * T.float32("inf"))
                        P_tile[0, m_i, n_v * 16 + n_l] = x5
            for j0 in range(2):
                for j in T.vectorized(16):
                    Z_tile[0, j0 * 16 + j] = T.float32(0.0)
            for m_i in range(32):
                for l in T.vectorized(16):
                    lane[l] = T.float32(0.0)
                for n_v in range(4):
                    for n_l in T.vectorized(16):
                        lane[n_l] = lane[n_l] + P_tile[0, m_i, n_v * 16 + n_l]
                for l in T.vectorized(8):
                    lane[l] = lane[l] + lane[l + 8]
                for l in T.vectorized(4):
                    lane[l] = lane[l] + lane[l + 4]
                for l in T.vectorized(2):
                    lane[l] = lane[l] + lane[l + 2]
                Z_tile[0, m_i] = Z_tile[0, m_i] + lane[0] + lane[1]
            for i0 in range(4):
                for i in T.unroll(8):
                    for j in T.vectorized(16):
                        acc0[i, j] = T.float32(0)
                for i in T.unroll(8):
                    for j in T.vectorized(16):
                        acc1[i, j] = T.float32(0)
                for n_i in range(64):
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            acc0[i, j] = acc0[i, j] + P_tile[0, i0 * 8 + i, n_i] * V_flat[b_t * 2048 + n_i * 32 + j]
                        for j in T.vectorized(16):
                            acc1[i, j] = acc1[i, j] + P_tile[0, i0 * 8 + i, n_i] * V_flat[b_t * 2048 + n_i * 32 + 16 + j]
                for i in T.unroll(8):
                    for j in T.vectorized(16):
                        O_flat[b_t * 2048 + (m_t * 32 + i0 * 8 + i) * 32 + j] = (acc0[i, j] / Z_tile[0, i0 * 8 + i])
                    for j in T.vectorized(16):
                        O_flat[b_t * 2048 + (m_t * 32 + i0 * 8 + i) * 32 + 16 + j] = (acc1[i, j] / Z_tile[0, i0 * 8 + i])
