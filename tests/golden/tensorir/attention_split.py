# attention_1_32_256_32_32 as mh.nk m=32 n=32 k=32 h=32
@T.prim_func(s_tir=True, private=True)
def kernel(Q_arg: T.Buffer((1024,), "float32"), K_arg: T.Buffer((8192,), "float32"), V_arg: T.Buffer((8192,), "float32"), O_arg: T.Buffer((1024,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    Q_flat = T.decl_buffer((1024,), "float32", data=Q_arg.data)
    K_flat = T.decl_buffer((8192,), "float32", data=K_arg.data)
    V_flat = T.decl_buffer((8192,), "float32", data=V_arg.data)
    O_flat = T.decl_buffer((1024,), "float32", data=O_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        R_parts = T.alloc_buffer((1, 3, 1, 32), "float32")
        Z_parts = T.alloc_buffer((1, 3, 1, 32), "float32")
        U_parts = T.alloc_buffer((1, 3, 1, 32, 32), "float32")
        for p in T.parallel(3):
            t: T.let[T.int32] = p // 3
            part: T.let[T.int32] = p % 3
            K_panels = T.alloc_buffer((1, 32, 32), "float32")
            X_tile = T.alloc_buffer((1, 32, 32), "float32")
            R_tile = T.alloc_buffer((1, 32), "float32")
            R_old_tile = T.alloc_buffer((1, 32), "float32")
            P_tile = T.alloc_buffer((1, 32, 32), "float32")
            Z_tile = T.alloc_buffer((1, 32), "float32")
            U_tile = T.alloc_buffer((1, 32, 32), "float32")
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
            for n_t in range(part * 3, T.max(part * 3, T.min(8, part * 3 + 3))):
                for j in range(32):
                    for k_v in range(2):
                        for k_l in T.vectorized(16):
                            K_panels[0, k_v * 16 + k_l, j] = K_flat[(n_t * 32 + j) * 32 + k_v * 16 + k_l]
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
                                acc0[i, j] = acc0[i, j] + Q_flat[(i0 * 8 + i) * 32 + k_i] * K_panels[0, k_i, j]
                            for j in T.vectorized(16):
                                acc1[i, j] = acc1[i, j] + Q_flat[(i0 * 8 + i) * 32 + k_i] * K_panels[0, k_i, 16 + j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            X_tile[0, i0 * 8 + i, j] = (acc0[i, j] * T.float32(0.17677669529663687))
                        for j in T.vectorized(16):
                            X_tile[0, i0 * 8 + i, 16 + j] = (acc1[i, j] * T.float32(0.17677669529663687))
                for m_v in range(2):
                    for m_l in T.vectorized(16):
                        R_old_tile[0, m_v * 16 + m_l] = R_tile[0, m_v * 16 + m_l]
                for m_i in range(32):
                    for l in T.vectorized(16):
                        lane[l] = T.float32(-3.4028234663852886e+38)
                    for n_v in range(2):
                        for n_l in T.vectorized(16):
                            lane[n_l] = T.max(lane[n_l], X_tile[0, m_i, n_v * 16 + n_l])
                    for l in T.vectorized(8):
                        lane[l] = T.max(lane[l], lane[l + 8])
                    for l in T.vectorized(4):
                        lane[l] = T.max(lane[l], lane[l + 4])
                    for l in T.vectorized(2):
                        lane[l] = T.max(lane[l], lane[l + 2])
                    R_tile[0, m_i] = T.max(R_tile[0, m_i], T.max(lane[0], lane[1]))
                for m_v in range(2):
                    for m_l in T.vectorized(16):
                        x0: T.let[T.float32] = (R_old_tile[0, m_v * 16 + m_l] - R_tile[0, m_v * 16 + m_l])
                        x1: T.let[T.float32] = T.min(T.max(x0, T.float32(-88.0296919)), T.float32(88.3762626))
                        x2: T.let[T.float32] = T.floor(x1 * T.float32(1.4426950408889634) + T.float32(0.5))
                        x3: T.let[T.float32] = (x1 - x2 * T.float32(0.693359375)) - x2 * T.float32(-0.000212194440)
                        x4: T.let[T.float32] = (T.float32(1.0) + x3 * (T.float32(1.0) + x3 * (T.float32(0.5) + x3 * (T.float32(0.16666415333747864) + x3 * (T.float32(0.04166608303785324) + x3 * (T.float32(0.008375135250389576) + x3 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x2) + 127, 23))
                        x5: T.let[T.float32] = T.Select(x0 <= T.float32(88.3762626), x4, x0 * T.float32("inf"))
                        Z_tile[0, m_v * 16 + m_l] = (Z_tile[0, m_v * 16 + m_l] * x5)
                for m_i in range(32):
                    x6: T.let[T.float32] = (R_old_tile[0, m_i] - R_tile[0, m_i])
                    x7: T.let[T.float32] = T.min(T.max(x6, T.float32(-88.0296919)), T.float32(88.3762626))
                    x8: T.let[T.float32] = T.floor(x7 * T.float32(1.4426950408889634) + T.float32(0.5))
                    x9: T.let[T.float32] = (x7 - x8 * T.float32(0.693359375)) - x8 * T.float32(-0.000212194440)
                    x10: T.let[T.float32] = (T.float32(1.0) + x9 * (T.float32(1.0) + x9 * (T.float32(0.5) + x9 * (T.float32(0.16666415333747864) + x9 * (T.float32(0.04166608303785324) + x9 * (T.float32(0.008375135250389576) + x9 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x8) + 127, 23))
                    x11: T.let[T.float32] = T.Select(x6 <= T.float32(88.3762626), x10, x6 * T.float32("inf"))
                    once[0] = x11
                    for h_v in range(2):
                        for h_l in T.vectorized(16):
                            U_tile[0, m_i, h_v * 16 + h_l] = (U_tile[0, m_i, h_v * 16 + h_l] * once[0])
                for m_i in range(32):
                    for n_v in range(2):
                        for n_l in T.vectorized(16):
                            x12: T.let[T.float32] = (X_tile[0, m_i, n_v * 16 + n_l] - R_tile[0, m_i])
                            x13: T.let[T.float32] = T.min(T.max(x12, T.float32(-88.0296919)), T.float32(88.3762626))
                            x14: T.let[T.float32] = T.floor(x13 * T.float32(1.4426950408889634) + T.float32(0.5))
                            x15: T.let[T.float32] = (x13 - x14 * T.float32(0.693359375)) - x14 * T.float32(-0.000212194440)
                            x16: T.let[T.float32] = (T.float32(1.0) + x15 * (T.float32(1.0) + x15 * (T.float32(0.5) + x15 * (T.float32(0.16666415333747864) + x15 * (T.float32(0.04166608303785324) + x15 * (T.float32(0.008375135250389576) + x15 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x14) + 127, 23))
                            x17: T.let[T.float32] = T.Select(x12 <= T.float32(88.3762626), x16, x12 * T.float32("inf"))
                            P_tile[0, m_i, n_v * 16 + n_l] = x17
                for m_i in range(32):
                    for l in T.vectorized(16):
                        lane[l] = T.float32(0.0)
                    for n_v in range(2):
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
                            acc0[i, j] = U_tile[0, i0 * 8 + i, j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            acc1[i, j] = U_tile[0, i0 * 8 + i, 16 + j]
                    for n_i in range(32):
                        for i in T.unroll(8):
                            for j in T.vectorized(16):
                                acc0[i, j] = acc0[i, j] + P_tile[0, i0 * 8 + i, n_i] * V_flat[(n_t * 32 + n_i) * 32 + j]
                            for j in T.vectorized(16):
                                acc1[i, j] = acc1[i, j] + P_tile[0, i0 * 8 + i, n_i] * V_flat[(n_t * 32 + n_i) * 32 + 16 + j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            U_tile[0, i0 * 8 + i, j] = acc0[i, j]
                    for i in T.unroll(8):
                        for j in T.vectorized(16):
                            U_tile[0, i0 * 8 + i, 16 + j] = acc1[i, j]
            for m_v in range(2):
                for m_l in T.vectorized(16):
                    R_parts[t, part, 0, m_v * 16 + m_l] = R_tile[0, m_v * 16 + m_l]
            for m_v in range(2):
                for m_l in T.vectorized(16):
                    Z_parts[t, part, 0, m_v * 16 + m_l] = Z_tile[0, m_v * 16 + m_l]
            for m_i in range(32):
                for h_v in range(2):
                    for h_l in T.vectorized(16):
                        U_parts[t, part, 0, m_i, h_v * 16 + h_l] = U_tile[0, m_i, h_v * 16 + h_l]
        for t in range(1):
            R_tile = T.alloc_buffer((1, 32), "float32")
            Z_tile = T.alloc_buffer((1, 32), "float32")
            U_tile = T.alloc_buffer((1, 32, 32), "float32")
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for j0 in range(2):
                for j in T.vectorized(16):
                    R_tile[0, j0 * 16 + j] = T.float32(-3.4028234663852886e+38)
            for part in range(3):
                for m_v in range(2):
                    for m_l in T.vectorized(16):
                        R_tile[0, m_v * 16 + m_l] = T.max(R_tile[0, m_v * 16 + m_l], R_parts[t, part, 0, m_v * 16 + m_l])
            for j0 in range(2):
                for j in T.vectorized(16):
                    Z_tile[0, j0 * 16 + j] = T.float32(0.0)
            for part in range(3):
                for m_v in range(2):
                    for m_l in T.vectorized(16):
                        x18: T.let[T.float32] = (R_parts[t, part, 0, m_v * 16 + m_l] - R_tile[0, m_v * 16 + m_l])
                        x19: T.let[T.float32] = T.min(T.max(x18, T.float32(-88.0296919)), T.float32(88.3762626))
                        x20: T.let[T.float32] = T.floor(x19 * T.float32(1.4426950408889634) + T.float32(0.5))
                        x21: T.let[T.float32] = (x19 - x20 * T.float32(0.693359375)) - x20 * T.float32(-0.000212194440)
                        x22: T.let[T.float32] = (T.float32(1.0) + x21 * (T.float32(1.0) + x21 * (T.float32(0.5) + x21 * (T.float32(0.16666415333747864) + x21 * (T.float32(0.04166608303785324) + x21 * (T.float32(0.008375135250389576) + x21 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x20) + 127, 23))
                        x23: T.let[T.float32] = T.Select(x18 <= T.float32(88.3762626), x22, x18 * T.float32("inf"))
                        Z_tile[0, m_v * 16 + m_l] = (Z_tile[0, m_v * 16 + m_l] + (Z_parts[t, part, 0, m_v * 16 + m_l] * x23))
            for i1 in range(32):
                for j0 in range(2):
                    for j in T.vectorized(16):
                        U_tile[0, i1, j0 * 16 + j] = T.float32(0.0)
            for part in range(3):
                for m_i in range(32):
                    x24: T.let[T.float32] = (R_parts[t, part, 0, m_i] - R_tile[0, m_i])
                    x25: T.let[T.float32] = T.min(T.max(x24, T.float32(-88.0296919)), T.float32(88.3762626))
                    x26: T.let[T.float32] = T.floor(x25 * T.float32(1.4426950408889634) + T.float32(0.5))
                    x27: T.let[T.float32] = (x25 - x26 * T.float32(0.693359375)) - x26 * T.float32(-0.000212194440)
                    x28: T.let[T.float32] = (T.float32(1.0) + x27 * (T.float32(1.0) + x27 * (T.float32(0.5) + x27 * (T.float32(0.16666415333747864) + x27 * (T.float32(0.04166608303785324) + x27 * (T.float32(0.008375135250389576) + x27 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x26) + 127, 23))
                    x29: T.let[T.float32] = T.Select(x24 <= T.float32(88.3762626), x28, x24 * T.float32("inf"))
                    once[0] = x29
                    for h_v in range(2):
                        for h_l in T.vectorized(16):
                            U_tile[0, m_i, h_v * 16 + h_l] = (U_tile[0, m_i, h_v * 16 + h_l] + (U_parts[t, part, 0, m_i, h_v * 16 + h_l] * once[0]))
            for m_i in range(32):
                for h_v in range(2):
                    for h_l in T.vectorized(16):
                        O_flat[m_i * 32 + h_v * 16 + h_l] = (U_tile[0, m_i, h_v * 16 + h_l] / Z_tile[0, m_i])
