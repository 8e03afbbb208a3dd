# chain as mn.k m=16 n=32 k=64
@T.prim_func(s_tir=True, private=True)
def kernel(X_arg: T.Buffer((1400,), "uint8"), W_arg: T.Buffer((3456,), "int8"), Z_arg: T.Buffer((1,), "uint8"), S_arg: T.Buffer((40,), "float32"), Y_arg: T.Buffer((800,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    X_flat = T.decl_buffer((1400,), "uint8", data=X_arg.data)
    W_flat = T.decl_buffer((3456,), "int8", data=W_arg.data)
    Z_flat = T.decl_buffer((1,), "uint8", data=Z_arg.data)
    S_flat = T.decl_buffer((40,), "float32", data=S_arg.data)
    Y_flat = T.decl_buffer((800,), "float32", data=Y_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        for t in T.parallel(4):
            m_t: T.let[T.int32] = t // 2
            n_t: T.let[T.int32] = t % 2
            C_tile = T.alloc_buffer((16, 32), "float32")
            C_left = T.alloc_buffer((1024,), "uint8")
            sum0 = T.alloc_buffer((4, 8), "int32")
            sum1 = T.alloc_buffer((4, 8), "int32")
            zero0 = T.alloc_buffer((1, 8), "int32")
            zero1 = T.alloc_buffer((1, 8), "int32")
            lane = T.alloc_buffer((8,), "float32")
            once = T.alloc_buffer((8,), "float32")
            for i0 in range(16):
                for j0 in range(4):
                    for j in T.vectorized(8):
                        C_tile[i0, j0 * 8 + j] = T.float32(0.0)
            for k_t in range(2):
                for m_i in range(T.min(16, 20 - (m_t * 16))):
                    for z in range(((T.min(64, 70 - (k_t * 64)) + 3) // 4) * 4 - (T.min(64, 70 - (k_t * 64)))):
                        C_left[m_i * 64 + T.min(64, 70 - (k_t * 64)) + z] = T.uint8(0)
                    for k_v in range((T.min(64, 70 - (k_t * 64))) // 8):
                        for k_l in T.vectorized(8):
                            C_left[m_i * 64 + k_v * 8 + k_l] = T.Cast("uint8", T.Cast("int32", T.Cast("float32", T.Cast("int32", X_flat[(m_t * 16 + m_i) * 70 + k_t * 64 + k_v * 8 + k_l]))))
                    for k_r in range((T.min(64, 70 - (k_t * 64))) % 8):
                        C_left[m_i * 64 + ((T.min(64, 70 - (k_t * 64))) // 8) * 8 + k_r] = T.Cast("uint8", T.Cast("int32", T.Cast("float32", T.Cast("int32", X_flat[(m_t * 16 + m_i) * 70 + k_t * 64 + ((T.min(64, 70 - (k_t * 64))) // 8) * 8 + k_r]))))
                C_zero: T.let[T.int32] = T.reinterpret("int32", T.Cast("uint32", T.Cast("int32", T.Cast("float32", T.Cast("int32", Z_flat[0]))) - 0) * T.uint32(16843009))
                for j0 in range((T.min(32, 40 - (n_t * 32)) + 15) // 16):
                    for i0 in range((T.min(16, 20 - (m_t * 16)) + 3) // 4):
                        for i in T.unroll(4):
                            sum0[i, T.Ramp(0, 1, 8)] = T.Broadcast(T.int32(0), 8)
                        zero0[0, T.Ramp(0, 1, 8)] = T.Broadcast(T.int32(0), 8)
                        for i in T.unroll(4):
                            sum1[i, T.Ramp(0, 1, 8)] = T.Broadcast(T.int32(0), 8)
                        zero1[0, T.Ramp(0, 1, 8)] = T.Broadcast(T.int32(0), 8)
                        for e in range((T.min(64, 70 - (k_t * 64)) + 3) // 4):
                            zero0[0, T.Ramp(0, 1, 8)] = T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx512.vpdpbusd.256", zero0[0, T.Ramp(0, 1, 8)], T.reinterpret("int8x32", T.Broadcast(C_zero, 8)), W_flat[T.Ramp(((n_t * 32) // 16 + j0) * 1152 + (k_t * 16 + e) * 64, 1, 32)])
                            zero1[0, T.Ramp(0, 1, 8)] = T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx512.vpdpbusd.256", zero1[0, T.Ramp(0, 1, 8)], T.reinterpret("int8x32", T.Broadcast(C_zero, 8)), W_flat[T.Ramp(((n_t * 32) // 16 + j0) * 1152 + (k_t * 16 + e) * 64 + 32, 1, 32)])
                            for i in T.unroll(4):
                                sum0[i, T.Ramp(0, 1, 8)] = T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx512.vpdpbusd.256", sum0[i, T.Ramp(0, 1, 8)], T.reinterpret("int8x32", T.Broadcast(T.reinterpret("int32", C_left[T.Ramp((i0 * 4 + i) * 64 + e * 4, 1, 4)]), 8)), W_flat[T.Ramp(((n_t * 32) // 16 + j0) * 1152 + (k_t * 16 + e) * 64, 1, 32)])
                                sum1[i, T.Ramp(0, 1, 8)] = T.call_llvm_pure_intrin("int32x8", "llvm.x86.avx512.vpdpbusd.256", sum1[i, T.Ramp(0, 1, 8)], T.reinterpret("int8x32", T.Broadcast(T.reinterpret("int32", C_left[T.Ramp((i0 * 4 + i) * 64 + e * 4, 1, 4)]), 8)), W_flat[T.Ramp(((n_t * 32) // 16 + j0) * 1152 + (k_t * 16 + e) * 64 + 32, 1, 32)])
                        for i in T.unroll(4):
                            for j in T.vectorized(8):
                                C_tile[i0 * 4 + i, j0 * 16 + j] = C_tile[i0 * 4 + i, j0 * 16 + j] + T.Cast("float32", sum0[i, j] - zero0[0, j])
                        for i in T.unroll(4):
                            for j in T.vectorized(8):
                                C_tile[i0 * 4 + i, j0 * 16 + 8 + j] = C_tile[i0 * 4 + i, j0 * 16 + 8 + j] + T.Cast("float32", sum1[i, j] - zero1[0, j])
            for m_i in range(T.min(16, 20 - (m_t * 16))):
                for n_v in range((T.min(32, 40 - (n_t * 32))) // 8):
                    for n_l in T.vectorized(8):
                        Y_flat[(m_t * 16 + m_i) * 40 + n_t * 32 + n_v * 8 + n_l] = (C_tile[m_i, n_v * 8 + n_l] * S_flat[n_t * 32 + n_v * 8 + n_l])
                for n_r in range((T.min(32, 40 - (n_t * 32))) % 8):
                    Y_flat[(m_t * 16 + m_i) * 40 + n_t * 32 + ((T.min(32, 40 - (n_t * 32))) // 8) * 8 + n_r] = (C_tile[m_i, ((T.min(32, 40 - (n_t * 32))) // 8) * 8 + n_r] * S_flat[n_t * 32 + ((T.min(32, 40 - (n_t * 32))) // 8) * 8 + n_r])
