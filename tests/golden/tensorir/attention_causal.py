# chain as mh.nk m=32 n=32 k=32 h=32
@T.prim_func(s_tir=True, private=True)
def kernel(Q_arg: T.Buffer((4096,), "float32"), K_arg: T.Buffer((4096,), "float32"), V_arg: T.Buffer((4096,), "float32"), O_arg: T.Buffer((4096,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    Q_flat = T.decl_buffer((4096,), "float32", data=Q_arg.data)
    K_flat = T.decl_buffer((4096,), "float32", data=K_arg.data)
    V_flat = T.decl_buffer((4096,), "float32", data=V_arg.data)
    O_flat = T.decl_buffer((4096,), "float32", data=O_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        for t in T.parallel(4):
            b_t: T.let[T.int32] = t // 2
            m_f: T.let[T.int32] = t % 2
            m_t: T.let[T.int32] = T.if_then_else(m_f % 2 == 0, m_f // 2, 1 - m_f // 2)
            K_panels = T.alloc_buffer((1, 32, 32), "float32")
            S_tile = T.alloc_buffer((1, 32, 32), "float32")
            X_tile = T.alloc_buffer((1, 32, 32), "float32")
            R_tile = T.alloc_buffer((1, 32), "float32")
            R_old_tile = T.alloc_buffer((1, 32), "float32")
            P_tile = T.alloc_buffer((1, 32, 32), "float32")
            Z_tile = T.alloc_buffer((1, 32), "float32")
            U_tile = T.alloc_buffer((1, 32, 32), "float32")
            U_masked = T.alloc_buffer((1, 32, 32), "float32")
            acc0 = T.alloc_buffer((8, 16), "float32")
            acc1 = T.alloc_buffer((8, 16), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for j0 in range(2):
                for j in T.vectorized(16):
                    R_tile[0, j0 * 16 + j] = T.float32(-3.4028234663852886e+38)
            for j0 in range(2):
                for j in T.vectorized(16):
                    Z_tile[0, j0 * 16 + j] = T.float32(0.0)
            for i1 in range(32):
                for j0 in range(2):
                    for j in T.vectorized(16):
                        U_tile[0, i1, j0 * 16 + j] = T.float32(0.0)
            for n_t in range(0, T.max(0, T.min(2, (m_t * 32 + 31) // 32 + 1))):
                for j in range(32):
                    for k_v in range(2):
                        for k_l in T.vectorized(16):
                            K_panels[0, k_v * 16 + k_l, j] = K_flat[b_t * 2048 + (n_t * 32 + j) * 32 + k_v * 16 + k_l]
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
                                acc0[i, j] = acc0[i, j] + Q_flat[b_t * 2048 + (m_t * 32 + i0 * 8 + i) * 32 + k_i] * K_panels[0, k_i, j]
                            for j in T.vectorized(16):
                                acc1[i, j] = acc1[i, j] + Q_flat[b_t * 2048 + (m_t * 32 + i0 * 8 + i) * 32 + k_i] * K_panels[0, k_i, 16 + j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            S_tile[0, i0 * 8 + i, j] = acc0[i, j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            S_tile[0, i0 * 8 + i, 16 + j] = acc1[i, j]
                for m_i in range(32):
                    for n_v in range(1):
                        for n_l in T.vectorized(32):
                            x0: T.let[T.float32] = (S_tile[0, m_i, n_v * 32 + n_l] / T.float32(5.0))
                            x1: T.let[T.float32] = T.float32(2) * x0
                            x2: T.let[T.float32] = T.min(T.max(x1, T.float32(-88.0296919)), T.float32(88.3762626))
                            x3: T.let[T.float32] = T.floor(x2 * T.float32(1.4426950408889634) + T.float32(0.5))
                            x4: T.let[T.float32] = (x2 - x3 * T.float32(0.693359375)) - x3 * T.float32(-0.000212194440)
                            x5: T.let[T.float32] = (T.float32(1.0) + x4 * (T.float32(1.0) + x4 * (T.float32(0.5) + x4 * (T.float32(0.16666415333747864) + x4 * (T.float32(0.04166608303785324) + x4 * (T.float32(0.008375135250389576) + x4 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x3) + 127, 23))
                            x6: T.let[T.float32] = T.Select(x1 <= T.float32(88.3762626), x5, x1 * T.float32("inf"))
                            x7: T.let[T.float32] = T.float32(1) - T.float32(2) / (x6 + T.float32(1))
                            x8: T.let[T.float32] = x0 * x0
                            x9: T.let[T.float32] = T.Select(T.abs(x0) < T.float32(0.3), x0 * (T.float32(1.0) + x8 * (T.float32(-0.3333333333333333) + x8 * (T.float32(0.13333333333333333) + x8 * (T.float32(-0.05396825396825397) + x8 * T.float32(0.021869488536155203))))), x7)
                            X_tile[0, m_i, n_v * 32 + n_l] = ((T.float32(5.0) * x9) - (T.float32(0.1) * T.Cast("float32", (n_t * 32 + n_v * 32 + n_l))))
                for m_v in range(2):
                    for m_l in T.vectorized(16):
                        R_old_tile[0, m_v * 16 + m_l] = R_tile[0, m_v * 16 + m_l]
                for m_i in range(32):
                    for l in T.vectorized(16):
                        lane[l] = T.float32(-3.4028234663852886e+38)
                    for n_v in range(2):
                        for n_l in T.vectorized(16):
                            lane[n_l] = T.max(lane[n_l], T.Select(((n_t * 32 + n_v * 16 + n_l) <= (m_t * 32 + m_i)), X_tile[0, m_i, n_v * 16 + n_l], T.float32(-3.4028234663852886e+38)))
                    for l in T.vectorized(8):
                        lane[l] = T.max(lane[l], lane[l + 8])
                    for l in T.vectorized(4):
                        lane[l] = T.max(lane[l], lane[l + 4])
                    for l in T.vectorized(2):
                        lane[l] = T.max(lane[l], lane[l + 2])
                    R_tile[0, m_i] = T.max(R_tile[0, m_i], T.max(lane[0], lane[1]))
                for m_v in range(2):
                    for m_l in T.vectorized(16):
                        x10: T.let[T.float32] = (R_old_tile[0, m_v * 16 + m_l] - R_tile[0, m_v * 16 + m_l])
                        x11: T.let[T.float32] = T.min(T.max(x10, T.float32(-88.0296919)), T.float32(88.3762626))
                        x12: T.let[T.float32] = T.floor(x11 * T.float32(1.4426950408889634) + T.float32(0.5))
                        x13: T.let[T.float32] = (x11 - x12 * T.float32(0.693359375)) - x12 * T.float32(-0.000212194440)
                        x14: T.let[T.float32] = (T.float32(1.0) + x13 * (T.float32(1.0) + x13 * (T.float32(0.5) + x13 * (T.float32(0.16666415333747864) + x13 * (T.float32(0.04166608303785324) + x13 * (T.float32(0.008375135250389576) + x13 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x12) + 127, 23))
                        x15: T.let[T.float32] = T.Select(x10 <= T.float32(88.3762626), x14, x10 * T.float32("inf"))
                        Z_tile[0, m_v * 16 + m_l] = (Z_tile[0, m_v * 16 + m_l] * x15)
                for m_i in range(32):
                    x16: T.let[T.float32] = (R_old_tile[0, m_i] - R_tile[0, m_i])
                    x17: T.let[T.float32] = T.min(T.max(x16, T.float32(-88.0296919)), T.float32(88.3762626))
                    x18: T.let[T.float32] = T.floor(x17 * T.float32(1.4426950408889634) + T.float32(0.5))
                    x19: T.let[T.float32] = (x17 - x18 * T.float32(0.693359375)) - x18 * T.float32(-0.000212194440)
                    x20: T.let[T.float32] = (T.float32(1.0) + x19 * (T.float32(1.0) + x19 * (T.float32(0.5) + x19 * (T.float32(0.16666415333747864) + x19 * (T.float32(0.04166608303785324) + x19 * (T.float32(0.008375135250389576) + x19 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x18) + 127, 23))
                    x21: T.let[T.float32] = T.Select(x16 <= T.float32(88.3762626), x20, x16 * T.float32("inf"))
                    once[0] = x21
                    for h_v in range(2):
                        for h_l in T.vectorized(16):
                            U_tile[0, m_i, h_v * 16 + h_l] = (U_tile[0, m_i, h_v * 16 + h_l] * once[0])
                for m_i in range(32):
                    for n_v in range(2):
                        for n_l in T.vectorized(16):
                            x22: T.let[T.float32] = (X_tile[0, m_i, n_v * 16 + n_l] - R_tile[0, m_i])
                            x23: T.let[T.float32] = T.min(T.max(x22, T.float32(-88.0296919)), T.float32(88.3762626))
                            x24: T.let[T.float32] = T.floor(x23 * T.float32(1.4426950408889634) + T.float32(0.5))
                            x25: T.let[T.float32] = (x23 - x24 * T.float32(0.693359375)) - x24 * T.float32(-0.000212194440)
                            x26: T.let[T.float32] = (T.float32(1.0) + x25 * (T.float32(1.0) + x25 * (T.float32(0.5) + x25 * (T.float32(0.16666415333747864) + x25 * (T.float32(0.04166608303785324) + x25 * (T.float32(0.008375135250389576) + x25 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x24) + 127, 23))
                            x27: T.let[T.float32] = T.Select(x22 <= T.float32(88.3762626), x26, x22 * T.float32("inf"))
                            P_tile[0, m_i, n_v * 16 + n_l] = x27
                for m_i in range(32):
                    for l in T.vectorized(16):
                        lane[l] = T.float32(0.0)
                    for n_v in range(2):
                        for n_l in T.vectorized(16):
                            lane[n_l] = lane[n_l] + T.Select(((n_t * 32 + n_v * 16 + n_l) <= (m_t * 32 + m_i)), P_tile[0, m_i, n_v * 16 + n_l], T.float32(0.0))
                    for l in T.vectorized(8):
                        lane[l] = lane[l] + lane[l + 8]
                    for l in T.vectorized(4):
                        lane[l] = lane[l] + lane[l + 4]
                    for l in T.vectorized(2):
                        lane[l] = lane[l] + lane[l + 2]
                    Z_tile[0, m_i] = Z_tile[0, m_i] + lane[0] + lane[1]
                for m_i in range(32):
                    for n_v in range(2):
                        for n_l in T.vectorized(16):
                            U_masked[0, m_i, n_v * 16 + n_l] = T.Select(((n_t * 32 + n_v * 16 + n_l) <= (m_t * 32 + m_i)), P_tile[0, m_i, n_v * 16 + n_l], T.float32(0.0))
                for i0 in range(4):
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            acc0[i, j] = U_tile[0, i0 * 8 + i, j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            acc1[i, j] = U_tile[0, i0 * 8 + i, 16 + j]
                    for n_i in range(32):
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc0[i, j] = acc0[i, j] + U_masked[0, i0 * 8 + i, n_i] * V_flat[b_t * 2048 + (n_t * 32 + n_i) * 32 + j]
                            for j in T.vectorized(16):
                                acc1[i, j] = acc1[i, j] + U_masked[0, i0 * 8 + i, n_i] * V_flat[b_t * 2048 + (n_t * 32 + n_i) * 32 + 16 + j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            U_tile[0, i0 * 8 + i, j] = acc0[i, j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            U_tile[0, i0 * 8 + i, 16 + j] = acc1[i, j]
            for m_i in range(32):
                for h_v in range(2):
                    for h_l in T.vectorized(16):
                        O_flat[b_t * 2048 + (m_t * 32 + m_i) * 32 + h_v * 16 + h_l] = (U_tile[0, m_i, h_v * 16 + h_l] / Z_tile[0, m_i])
