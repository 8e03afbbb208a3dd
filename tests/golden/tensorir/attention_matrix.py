# attention_2_100_70_40_48 as mh.nk m=64 n=32 k=40 h=48
@T.prim_func(s_tir=True, private=True)
def kernel(Q_arg: T.Buffer((8000,), "float32"), K_arg: T.Buffer((5600,), "float32"), V_arg: T.Buffer((6720,), "float32"), O_arg: T.Buffer((9600,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    Q_flat = T.decl_buffer((8000,), "float32", data=Q_arg.data)
    K_flat = T.decl_buffer((5600,), "float32", data=K_arg.data)
    V_flat = T.decl_buffer((6720,), "float32", data=V_arg.data)
    O_flat = T.decl_buffer((9600,), "float32", data=O_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        assert T.call_extern("int64", "syscall", T.int64(158), T.int64(4131), T.int64(18)) == T.int64(0), "this kernel computes with the tile registers of Intel's AMX, and Linux does not let this process use them: arch_prctl(ARCH_REQ_XCOMP_PERM, 18) fails; it needs a CPU with amx_bf16, and Linux 5.16 or newer"
        for t in T.parallel(4):
            b_t: T.let[T.int32] = t // 2
            m_t: T.let[T.int32] = t % 2
            K_panels = T.alloc_buffer((1, 40, 32), "float32")
            V_panels = T.alloc_buffer((2, 32, 32), "float32")
            S_tile = T.alloc_buffer((2048,), "float32")
            S_tile[0] = T.float32(0)
            S_tile[2047] = T.float32(0)
            X_tile = T.alloc_buffer((1, 64, 32), "float32")
            R_tile = T.alloc_buffer((1, 64), "float32")
            R_old_tile = T.alloc_buffer((1, 64), "float32")
            P_tile = T.alloc_buffer((1, 64, 32), "float32")
            Z_tile = T.alloc_buffer((1, 64), "float32")
            U_tile = T.alloc_buffer((4096,), "float32")
            U_tile[0] = T.float32(0)
            U_tile[4095] = T.float32(0)
            S_right = T.alloc_buffer((3072,), "uint32")
            S_right[0] = T.uint32(0)
            S_right[3071] = T.uint32(0)
            U_right = T.alloc_buffer((1536,), "uint32")
            U_right[0] = T.uint32(0)
            U_right[1535] = T.uint32(0)
            S_left = T.alloc_buffer((18432,), "uint16")
            S_left[0] = T.uint16(0)
            S_left[18431] = T.uint16(0)
            U_left = T.alloc_buffer((12288,), "uint16")
            U_left[0] = T.uint16(0)
            U_left[12287] = T.uint16(0)
            lane = T.alloc_buffer((16,), "float32")
            once = T.alloc_buffer((8,), "float32")
            tile_shapes = T.alloc_buffer((64,), "uint8")
            for i in range(64):
                tile_shapes[i] = T.uint8(0)
            tile_shapes[0] = T.uint8(1)
            for i in range(8):
                tile_shapes[16 + 2 * i] = T.uint8(64)
                tile_shapes[48 + i] = T.uint8(16)
            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.ldtilecfg", T.address_of(tile_shapes[0])))
            for m_i in range(T.min(64, 100 - (m_t * 64))):
                for z in range(24):
                    S_left[m_i * 96 + 40 + z] = T.uint16(0)
                for z in range(24):
                    S_left[(64 + m_i) * 96 + 40 + z] = T.uint16(0)
                for z in range(24):
                    S_left[(128 + m_i) * 96 + 40 + z] = T.uint16(0)
                for k_v in range(2):
                    for k_l in T.vectorized(16):
                        S_left[m_i * 96 + k_v * 16 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l]), T.uint32(16)))
                        S_left[(64 + m_i) * 96 + k_v * 16 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", (Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l]), T.uint32(4294901760))))), T.uint32(16)))
                        S_left[(128 + m_i) * 96 + k_v * 16 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", ((Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)))
                for k_l in T.vectorized(8):
                    S_left[m_i * 96 + 32 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l]), T.uint32(16)))
                    S_left[(64 + m_i) * 96 + 32 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", (Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l]), T.uint32(4294901760))))), T.uint32(16)))
                    S_left[(128 + m_i) * 96 + 32 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", ((Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", Q_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)))
            for j0 in range(4):
                for j in T.vectorized(16):
                    R_tile[0, j0 * 16 + j] = T.float32(-3.4028234663852886e+38)
            for j0 in range(4):
                for j in T.vectorized(16):
                    Z_tile[0, j0 * 16 + j] = T.float32(0.0)
            for i1 in range(64):
                for j0 in range(4):
                    for j in T.vectorized(16):
                        U_tile[i1 * 64 + j0 * 16 + j] = T.float32(0.0)
            for n_t in range(3):
                for p in range((T.min(32, 70 - (n_t * 32)) + 31) // 32):
                    for j in range(T.min(32, 70 - (n_t * 32))):
                        for k_v in range(2):
                            for k_l in T.vectorized(16):
                                K_panels[p, k_v * 16 + k_l, j] = K_flat[b_t * 2800 + (n_t * 32 + p * 32 + j) * 40 + k_v * 16 + k_l]
                        for k_l in T.vectorized(8):
                            K_panels[p, 32 + k_l, j] = K_flat[b_t * 2800 + (n_t * 32 + p * 32 + j) * 40 + 32 + k_l]
                    for k_i in range(40):
                        for j in range(32 - (T.min(32, 70 - (n_t * 32)))):
                            K_panels[p, k_i, T.min(32, 70 - (n_t * 32)) + j] = T.float32(0)
                for j0 in range((T.min(32, 70 - (n_t * 32)) + 31) // 32):
                    for z in range(12):
                        for j in T.vectorized(16):
                            S_right[(20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            S_right[(32 + 20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            S_right[(64 + 20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            S_right[(96 + 20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            S_right[((3 + 1) * 32 + 20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            S_right[((3 + 2) * 32 + 20 + z) * 16 + j] = T.uint32(0)
                    for e in range(20):
                        for j in T.vectorized(16):
                            S_right[e * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", K_panels[j0, e * 2, j]), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2 + 1, j]), T.uint32(4294901760)))
                            S_right[(32 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", (K_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2, j]), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", (K_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2 + 1, j]), T.uint32(4294901760))))), T.uint32(4294901760)))
                            S_right[(64 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", ((K_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (K_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", ((K_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2 + 1, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (K_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2 + 1, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(4294901760)))
                        for j in T.vectorized(16):
                            S_right[(96 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", K_panels[j0, e * 2, 16 + j]), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760)))
                            S_right[((3 + 1) * 32 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", (K_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", (K_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760)))
                            S_right[((3 + 2) * 32 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", ((K_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (K_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", ((K_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (K_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", K_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(4294901760)))
                    for i0 in range((T.min(64, 100 - (m_t * 64)) + 31) // 32):
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilezero", T.int8(0)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilezero", T.int8(1)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilezero", T.int8(2)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilezero", T.int8(3)))
                        for k0 in range(2):
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(S_left[i0 * 32 * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(S_left[(i0 * 32 + 16) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(S_right[(64 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(S_right[((3 + 2) * 32 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(S_right[(32 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(S_right[((3 + 1) * 32 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(S_left[(64 + i0 * 32) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(S_left[(64 + i0 * 32 + 16) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(S_right[k0 * 16 * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(S_right[(96 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(S_left[(128 + i0 * 32) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(S_left[(128 + i0 * 32 + 16) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(S_left[i0 * 32 * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(S_left[(i0 * 32 + 16) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(0), T.address_of(S_tile[i0 * 32 * 32 + j0 * 32]), T.int64(128)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(1), T.address_of(S_tile[i0 * 32 * 32 + j0 * 32 + 16]), T.int64(128)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(2), T.address_of(S_tile[(i0 * 32 + 16) * 32 + j0 * 32]), T.int64(128)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(3), T.address_of(S_tile[(i0 * 32 + 16) * 32 + j0 * 32 + 16]), T.int64(128)))
                for m_i in range(T.min(64, 100 - (m_t * 64))):
                    for n_v in range((T.min(32, 70 - (n_t * 32))) // 16):
                        for n_l in T.vectorized(16):
                            X_tile[0, m_i, n_v * 16 + n_l] = (S_tile[m_i * 32 + n_v * 16 + n_l] * T.float32(0.15811388300841897))
                    for n_r in range((T.min(32, 70 - (n_t * 32))) % 16):
                        X_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] = (S_tile[m_i * 32 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] * T.float32(0.15811388300841897))
                for m_v in range((T.min(64, 100 - (m_t * 64))) // 16):
                    for m_l in T.vectorized(16):
                        R_old_tile[0, m_v * 16 + m_l] = R_tile[0, m_v * 16 + m_l]
                for m_r in range((T.min(64, 100 - (m_t * 64))) % 16):
                    R_old_tile[0, ((T.min(64, 100 - (m_t * 64))) // 16) * 16 + m_r] = R_tile[0, ((T.min(64, 100 - (m_t * 64))) // 16) * 16 + m_r]
                for m_i in range(T.min(64, 100 - (m_t * 64))):
                    for l in T.vectorized(16):
                        lane[l] = T.float32(-3.4028234663852886e+38)
                    for n_v in range((T.min(32, 70 - (n_t * 32))) // 16):
                        for n_l in T.vectorized(16):
                            lane[n_l] = T.max(lane[n_l], X_tile[0, m_i, n_v * 16 + n_l])
                    for n_r in range((T.min(32, 70 - (n_t * 32))) % 16):
                        lane[n_r] = T.max(lane[n_r], X_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r])
                    for l in T.vectorized(8):
                        lane[l] = T.max(lane[l], lane[l + 8])
                    for l in T.vectorized(4):
                        lane[l] = T.max(lane[l], lane[l + 4])
                    for l in T.vectorized(2):
                        lane[l] = T.max(lane[l], lane[l + 2])
                    R_tile[0, m_i] = T.max(R_tile[0, m_i], T.max(lane[0], lane[1]))
                for m_v in range((T.min(64, 100 - (m_t * 64))) // 16):
                    for m_l in T.vectorized(16):
                        x0: T.let[T.float32] = (R_old_tile[0, m_v * 16 + m_l] - R_tile[0, m_v * 16 + m_l])
                        x1: T.let[T.float32] = T.min(T.max(x0, T.float32(-88.0296919)), T.float32(88.3762626))
                        x2: T.let[T.float32] = T.floor(x1 * T.float32(1.4426950408889634) + T.float32(0.5))
                        x3: T.let[T.float32] = (x1 - x2 * T.float32(0.693359375)) - x2 * T.float32(-0.000212194440)
                        x4: T.let[T.float32] = (T.float32(1.0) + x3 * (T.float32(1.0) + x3 * (T.float32(0.5) + x3 * (T.float32(0.16666415333747864) + x3 * (T.float32(0.04166608303785324) + x3 * (T.float32(0.008375135250389576) + x3 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x2) + 127, 23))
                        x5: T.let[T.float32] = T.Select(x0 <= T.float32(88.3762626), x4, x0 * T.float32("inf"))
                        Z_tile[0, m_v * 16 + m_l] = (Z_tile[0, m_v * 16 + m_l] * x5)
                for m_r in range((T.min(64, 100 - (m_t * 64))) % 16):
                    x6: T.let[T.float32] = (R_old_tile[0, ((T.min(64, 100 - (m_t * 64))) // 16) * 16 + m_r] - R_tile[0, ((T.min(64, 100 - (m_t * 64))) // 16) * 16 + m_r])
                    x7: T.let[T.float32] = T.min(T.max(x6, T.float32(-88.0296919)), T.float32(88.3762626))
                    x8: T.let[T.float32] = T.floor(x7 * T.float32(1.4426950408889634) + T.float32(0.5))
                    x9: T.let[T.float32] = (x7 - x8 * T.float32(0.693359375)) - x8 * T.float32(-0.000212194440)
                    x10: T.let[T.float32] = (T.float32(1.0) + x9 * (T.float32(1.0) + x9 * (T.float32(0.5) + x9 * (T.float32(0.16666415333747864) + x9 * (T.float32(0.04166608303785324) + x9 * (T.float32(0.008375135250389576) + x9 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x8) + 127, 23))
                    x11: T.let[T.float32] = T.Select(x6 <= T.float32(88.3762626), x10, x6 * T.float32("inf"))
                    Z_tile[0, ((T.min(64, 100 - (m_t * 64))) // 16) * 16 + m_r] = (Z_tile[0, ((T.min(64, 100 - (m_t * 64))) // 16) * 16 + m_r] * x11)
                for m_i in range(T.min(64, 100 - (m_t * 64))):
                    x12: T.let[T.float32] = (R_old_tile[0, m_i] - R_tile[0, m_i])
                    x13: T.let[T.float32] = T.min(T.max(x12, T.float32(-88.0296919)), T.float32(88.3762626))
                    x14: T.let[T.float32] = T.floor(x13 * T.float32(1.4426950408889634) + T.float32(0.5))
                    x15: T.let[T.float32] = (x13 - x14 * T.float32(0.693359375)) - x14 * T.float32(-0.000212194440)
                    x16: T.let[T.float32] = (T.float32(1.0) + x15 * (T.float32(1.0) + x15 * (T.float32(0.5) + x15 * (T.float32(0.16666415333747864) + x15 * (T.float32(0.04166608303785324) + x15 * (T.float32(0.008375135250389576) + x15 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x14) + 127, 23))
                    x17: T.let[T.float32] = T.Select(x12 <= T.float32(88.3762626), x16, x12 * T.float32("inf"))
                    once[0] = x17
                    for h_v in range(3):
                        for h_l in T.vectorized(16):
                            U_tile[m_i * 64 + h_v * 16 + h_l] = (U_tile[m_i * 64 + h_v * 16 + h_l] * once[0])
                for m_i in range(T.min(64, 100 - (m_t * 64))):
                    for n_v in range((T.min(32, 70 - (n_t * 32))) // 16):
                        for n_l in T.vectorized(16):
                            x18: T.let[T.float32] = (X_tile[0, m_i, n_v * 16 + n_l] - R_tile[0, m_i])
                            x19: T.let[T.float32] = T.min(T.max(x18, T.float32(-88.0296919)), T.float32(88.3762626))
                            x20: T.let[T.float32] = T.floor(x19 * T.float32(1.4426950408889634) + T.float32(0.5))
                            x21: T.let[T.float32] = (x19 - x20 * T.float32(0.693359375)) - x20 * T.float32(-0.000212194440)
                            x22: T.let[T.float32] = (T.float32(1.0) + x21 * (T.float32(1.0) + x21 * (T.float32(0.5) + x21 * (T.float32(0.16666415333747864) + x21 * (T.float32(0.04166608303785324) + x21 * (T.float32(0.008375135250389576) + x21 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x20) + 127, 23))
                            x23: T.let[T.float32] = T.Select(x18 <= T.float32(88.3762626), x22, x18 * T.float32("inf"))
                            P_tile[0, m_i, n_v * 16 + n_l] = x23
                    for n_r in range((T.min(32, 70 - (n_t * 32))) % 16):
                        x24: T.let[T.float32] = (X_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] - R_tile[0, m_i])
                        x25: T.let[T.float32] = T.min(T.max(x24, T.float32(-88.0296919)), T.float32(88.3762626))
                        x26: T.let[T.float32] = T.floor(x25 * T.float32(1.4426950408889634) + T.float32(0.5))
                        x27: T.let[T.float32] = (x25 - x26 * T.float32(0.693359375)) - x26 * T.float32(-0.000212194440)
                        x28: T.let[T.float32] = (T.float32(1.0) + x27 * (T.float32(1.0) + x27 * (T.float32(0.5) + x27 * (T.float32(0.16666415333747864) + x27 * (T.float32(0.04166608303785324) + x27 * (T.float32(0.008375135250389576) + x27 * T.float32(0.001395604107528925))))))) * T.reinterpret("float32", T.shift_left(T.Cast("int32", x26) + 127, 23))
                        x29: T.let[T.float32] = T.Select(x24 <= T.float32(88.3762626), x28, x24 * T.float32("inf"))
                        P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] = x29
                for m_i in range(T.min(64, 100 - (m_t * 64))):
                    for l in T.vectorized(16):
                        lane[l] = T.float32(0.0)
                    for n_v in range((T.min(32, 70 - (n_t * 32))) // 16):
                        for n_l in T.vectorized(16):
                            lane[n_l] = lane[n_l] + P_tile[0, m_i, n_v * 16 + n_l]
                    for n_r in range((T.min(32, 70 - (n_t * 32))) % 16):
                        lane[n_r] = lane[n_r] + P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]
                    for l in T.vectorized(8):
                        lane[l] = lane[l] + lane[l + 8]
                    for l in T.vectorized(4):
                        lane[l] = lane[l] + lane[l + 4]
                    for l in T.vectorized(2):
                        lane[l] = lane[l] + lane[l + 2]
                    Z_tile[0, m_i] = Z_tile[0, m_i] + lane[0] + lane[1]
                for p in range(2):
                    for n_i in range(T.min(32, 70 - (n_t * 32))):
                        for j in range(T.min(32, 48 - (p * 32))):
                            V_panels[p, n_i, j] = V_flat[b_t * 3360 + (n_t * 32 + n_i) * 48 + p * 32 + j]
                    for n_i in range(T.min(32, 70 - (n_t * 32))):
                        for j in range(32 - (T.min(32, 48 - (p * 32)))):
                            V_panels[p, n_i, T.min(32, 48 - (p * 32)) + j] = T.float32(0)
                for m_i in range(T.min(64, 100 - (m_t * 64))):
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 32 - (T.min(32, 70 - (n_t * 32)))):
                        U_left[m_i * 64 + T.min(32, 70 - (n_t * 32)) + z] = T.uint16(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 32 - (T.min(32, 70 - (n_t * 32)))):
                        U_left[(64 + m_i) * 64 + T.min(32, 70 - (n_t * 32)) + z] = T.uint16(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 32 - (T.min(32, 70 - (n_t * 32)))):
                        U_left[(128 + m_i) * 64 + T.min(32, 70 - (n_t * 32)) + z] = T.uint16(0)
                    for n_v in range((T.min(32, 70 - (n_t * 32))) // 16):
                        for n_l in T.vectorized(16):
                            U_left[m_i * 64 + n_v * 16 + n_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", P_tile[0, m_i, n_v * 16 + n_l]), T.uint32(16)))
                            U_left[(64 + m_i) * 64 + n_v * 16 + n_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", (P_tile[0, m_i, n_v * 16 + n_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", P_tile[0, m_i, n_v * 16 + n_l]), T.uint32(4294901760))))), T.uint32(16)))
                            U_left[(128 + m_i) * 64 + n_v * 16 + n_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", ((P_tile[0, m_i, n_v * 16 + n_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", P_tile[0, m_i, n_v * 16 + n_l]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (P_tile[0, m_i, n_v * 16 + n_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", P_tile[0, m_i, n_v * 16 + n_l]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)))
                    for n_r in range((T.min(32, 70 - (n_t * 32))) % 16):
                        U_left[m_i * 64 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]), T.uint32(16)))
                        U_left[(64 + m_i) * 64 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", (P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]), T.uint32(4294901760))))), T.uint32(16)))
                        U_left[(128 + m_i) * 64 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", ((P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", P_tile[0, m_i, ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)))
                for j0 in range(2):
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            U_right[((T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            U_right[(16 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            U_right[(32 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            U_right[(48 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            U_right[((3 + 1) * 16 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            U_right[((3 + 2) * 16 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for e in range((T.min(32, 70 - (n_t * 32))) // 2):
                        for j in T.vectorized(16):
                            U_right[e * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", V_panels[j0, e * 2, j]), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2 + 1, j]), T.uint32(4294901760)))
                            U_right[(16 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", (V_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2, j]), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", (V_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2 + 1, j]), T.uint32(4294901760))))), T.uint32(4294901760)))
                            U_right[(32 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", ((V_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (V_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", ((V_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2 + 1, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (V_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2 + 1, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(4294901760)))
                        for j in T.vectorized(16):
                            U_right[(48 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", V_panels[j0, e * 2, 16 + j]), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760)))
                            U_right[((3 + 1) * 16 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", (V_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", (V_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760)))
                            U_right[((3 + 2) * 16 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", ((V_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (V_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", ((V_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (V_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(4294901760)))
                    if (T.min(32, 70 - (n_t * 32))) % 2 == 1:
                        for j in T.vectorized(16):
                            U_right[((T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j]), T.uint32(16))
                            U_right[(16 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", (V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j]), T.uint32(4294901760))))), T.uint32(16))
                            U_right[(32 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", ((V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16))
                        for j in T.vectorized(16):
                            U_right[(48 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j]), T.uint32(16))
                            U_right[((3 + 1) * 16 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", (V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(16))
                            U_right[((3 + 2) * 16 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", ((V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", V_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16))
                    for i0 in range((T.min(64, 100 - (m_t * 64)) + 31) // 32):
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(0), T.address_of(U_tile[i0 * 32 * 64 + j0 * 32]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(1), T.address_of(U_tile[i0 * 32 * 64 + j0 * 32 + 16]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(2), T.address_of(U_tile[(i0 * 32 + 16) * 64 + j0 * 32]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(3), T.address_of(U_tile[(i0 * 32 + 16) * 64 + j0 * 32 + 16]), T.int64(256)))
                        for k0 in range((T.min(32, 70 - (n_t * 32)) + 31) // 32):
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(U_left[i0 * 32 * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(U_left[(i0 * 32 + 16) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(U_right[(32 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(U_right[((3 + 2) * 16 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(U_right[(16 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(U_right[((3 + 1) * 16 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(U_left[(64 + i0 * 32) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(U_left[(64 + i0 * 32 + 16) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(U_right[k0 * 16 * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(U_right[(48 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(U_left[(128 + i0 * 32) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(U_left[(128 + i0 * 32 + 16) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(U_left[i0 * 32 * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(U_left[(i0 * 32 + 16) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(0), T.address_of(U_tile[i0 * 32 * 64 + j0 * 32]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(1), T.address_of(U_tile[i0 * 32 * 64 + j0 * 32 + 16]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(2), T.address_of(U_tile[(i0 * 32 + 16) * 64 + j0 * 32]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(3), T.address_of(U_tile[(i0 * 32 + 16) * 64 + j0 * 32 + 16]), T.int64(256)))
            for m_i in range(T.min(64, 100 - (m_t * 64))):
                for h_v in range(3):
                    for h_l in T.vectorized(16):
                        O_flat[b_t * 4800 + (m_t * 64 + m_i) * 48 + h_v * 16 + h_l] = (U_tile[m_i * 64 + h_v * 16 + h_l] / Z_tile[0, m_i])
            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilerelease"))
