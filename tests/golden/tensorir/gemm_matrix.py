# gemm_2_100_70_40_48 as mh.nk m=64 n=32 k=40 h=48
@T.prim_func(s_tir=True, private=True)
def kernel(A_arg: T.Buffer((8000,), "float32"), B_arg: T.Buffer((5600,), "float32"), D_arg: T.Buffer((6720,), "float32"), E_arg: T.Buffer((9600,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    A_flat = T.decl_buffer((8000,), "float32", data=A_arg.data)
    B_flat = T.decl_buffer((5600,), "float32", data=B_arg.data)
    D_flat = T.decl_buffer((6720,), "float32", data=D_arg.data)
    E_flat = T.decl_buffer((9600,), "float32", data=E_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        assert T.call_extern("int64", "syscall", T.int64(158), T.int64(4131), T.int64(18)) == T.int64(0), "this kernel computes with the tile registers of Intel's AMX, and Linux does not let this process use them: arch_prctl(ARCH_REQ_XCOMP_PERM, 18) fails; it needs a CPU with amx_bf16, and Linux 5.16 or newer"
        for t in T.parallel(4):
            b_t: T.let[T.int32] = t // 2
            m_t: T.let[T.int32] = t % 2
            B_panels = T.alloc_buffer((1, 40, 32), "float32")
            D_panels = T.alloc_buffer((2, 32, 32), "float32")
            C_tile = T.alloc_buffer((2048,), "float32")
            C_tile[0] = T.float32(0)
            C_tile[2047] = T.float32(0)
            E_tile = T.alloc_buffer((4096,), "float32")
            E_tile[0] = T.float32(0)
            E_tile[4095] = T.float32(0)
            C_right = T.alloc_buffer((3072,), "uint32")
            C_right[0] = T.uint32(0)
            C_right[3071] = T.uint32(0)
            E_right = T.alloc_buffer((1536,), "uint32")
            E_right[0] = T.uint32(0)
            E_right[1535] = T.uint32(0)
            C_left = T.alloc_buffer((18432,), "uint16")
            C_left[0] = T.uint16(0)
            C_left[18431] = T.uint16(0)
            E_left = T.alloc_buffer((12288,), "uint16")
            E_left[0] = T.uint16(0)
            E_left[12287] = T.uint16(0)
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
                    C_left[m_i * 96 + 40 + z] = T.uint16(0)
                for z in range(24):
                    C_left[(64 + m_i) * 96 + 40 + z] = T.uint16(0)
                for z in range(24):
                    C_left[(128 + m_i) * 96 + 40 + z] = T.uint16(0)
                for k_v in range(2):
                    for k_l in T.vectorized(16):
                        C_left[m_i * 96 + k_v * 16 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l]), T.uint32(16)))
                        C_left[(64 + m_i) * 96 + k_v * 16 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", (A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l]), T.uint32(4294901760))))), T.uint32(16)))
                        C_left[(128 + m_i) * 96 + k_v * 16 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", ((A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + k_v * 16 + k_l]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)))
                for k_l in T.vectorized(8):
                    C_left[m_i * 96 + 32 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l]), T.uint32(16)))
                    C_left[(64 + m_i) * 96 + 32 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", (A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l]), T.uint32(4294901760))))), T.uint32(16)))
                    C_left[(128 + m_i) * 96 + 32 + k_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", ((A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", A_flat[b_t * 4000 + (m_t * 64 + m_i) * 40 + 32 + k_l]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)))
            for i1 in range(64):
                for j0 in range(4):
                    for j in T.vectorized(16):
                        E_tile[i1 * 64 + j0 * 16 + j] = T.float32(0.0)
            for n_t in range(3):
                for p in range((T.min(32, 70 - (n_t * 32)) + 31) // 32):
                    for k_i in range(40):
                        for j in range(T.min(32, 70 - (n_t * 32))):
                            B_panels[p, k_i, j] = B_flat[b_t * 2800 + k_i * 70 + n_t * 32 + p * 32 + j]
                    for k_i in range(40):
                        for j in range(32 - (T.min(32, 70 - (n_t * 32)))):
                            B_panels[p, k_i, T.min(32, 70 - (n_t * 32)) + j] = T.float32(0)
                for j0 in range((T.min(32, 70 - (n_t * 32)) + 31) // 32):
                    for z in range(12):
                        for j in T.vectorized(16):
                            C_right[(20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            C_right[(32 + 20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            C_right[(64 + 20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            C_right[(96 + 20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            C_right[((3 + 1) * 32 + 20 + z) * 16 + j] = T.uint32(0)
                    for z in range(12):
                        for j in T.vectorized(16):
                            C_right[((3 + 2) * 32 + 20 + z) * 16 + j] = T.uint32(0)
                    for e in range(20):
                        for j in T.vectorized(16):
                            C_right[e * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", B_panels[j0, e * 2, j]), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2 + 1, j]), T.uint32(4294901760)))
                            C_right[(32 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", (B_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2, j]), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", (B_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2 + 1, j]), T.uint32(4294901760))))), T.uint32(4294901760)))
                            C_right[(64 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", ((B_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (B_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", ((B_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2 + 1, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (B_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2 + 1, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(4294901760)))
                        for j in T.vectorized(16):
                            C_right[(96 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", B_panels[j0, e * 2, 16 + j]), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760)))
                            C_right[((3 + 1) * 32 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", (B_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", (B_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760)))
                            C_right[((3 + 2) * 32 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", ((B_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (B_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", ((B_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (B_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", B_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(4294901760)))
                    for i0 in range((T.min(64, 100 - (m_t * 64)) + 31) // 32):
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilezero", T.int8(0)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilezero", T.int8(1)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilezero", T.int8(2)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilezero", T.int8(3)))
                        for k0 in range(2):
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(C_left[i0 * 32 * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(C_left[(i0 * 32 + 16) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(C_right[(64 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(C_right[((3 + 2) * 32 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(C_right[(32 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(C_right[((3 + 1) * 32 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(C_left[(64 + i0 * 32) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(C_left[(64 + i0 * 32 + 16) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(C_right[k0 * 16 * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(C_right[(96 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(C_left[(128 + i0 * 32) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(C_left[(128 + i0 * 32 + 16) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(C_left[i0 * 32 * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(C_left[(i0 * 32 + 16) * 96 + k0 * 32]), T.int64(192)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(0), T.address_of(C_tile[i0 * 32 * 32 + j0 * 32]), T.int64(128)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(1), T.address_of(C_tile[i0 * 32 * 32 + j0 * 32 + 16]), T.int64(128)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(2), T.address_of(C_tile[(i0 * 32 + 16) * 32 + j0 * 32]), T.int64(128)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(3), T.address_of(C_tile[(i0 * 32 + 16) * 32 + j0 * 32 + 16]), T.int64(128)))
                for p in range(2):
                    for n_i in range(T.min(32, 70 - (n_t * 32))):
                        for j in range(T.min(32, 48 - (p * 32))):
                            D_panels[p, n_i, j] = D_flat[b_t * 3360 + (n_t * 32 + n_i) * 48 + p * 32 + j]
                    for n_i in range(T.min(32, 70 - (n_t * 32))):
                        for j in range(32 - (T.min(32, 48 - (p * 32)))):
                            D_panels[p, n_i, T.min(32, 48 - (p * 32)) + j] = T.float32(0)
                for m_i in range(T.min(64, 100 - (m_t * 64))):
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 32 - (T.min(32, 70 - (n_t * 32)))):
                        E_left[m_i * 64 + T.min(32, 70 - (n_t * 32)) + z] = T.uint16(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 32 - (T.min(32, 70 - (n_t * 32)))):
                        E_left[(64 + m_i) * 64 + T.min(32, 70 - (n_t * 32)) + z] = T.uint16(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 32 - (T.min(32, 70 - (n_t * 32)))):
                        E_left[(128 + m_i) * 64 + T.min(32, 70 - (n_t * 32)) + z] = T.uint16(0)
                    for n_v in range((T.min(32, 70 - (n_t * 32))) // 16):
                        for n_l in T.vectorized(16):
                            E_left[m_i * 64 + n_v * 16 + n_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", C_tile[m_i * 32 + n_v * 16 + n_l]), T.uint32(16)))
                            E_left[(64 + m_i) * 64 + n_v * 16 + n_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", (C_tile[m_i * 32 + n_v * 16 + n_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", C_tile[m_i * 32 + n_v * 16 + n_l]), T.uint32(4294901760))))), T.uint32(16)))
                            E_left[(128 + m_i) * 64 + n_v * 16 + n_l] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", ((C_tile[m_i * 32 + n_v * 16 + n_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", C_tile[m_i * 32 + n_v * 16 + n_l]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (C_tile[m_i * 32 + n_v * 16 + n_l] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", C_tile[m_i * 32 + n_v * 16 + n_l]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)))
                    for n_r in range((T.min(32, 70 - (n_t * 32))) % 16):
                        E_left[m_i * 64 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", C_tile[m_i * 32 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]), T.uint32(16)))
                        E_left[(64 + m_i) * 64 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", (C_tile[m_i * 32 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", C_tile[m_i * 32 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]), T.uint32(4294901760))))), T.uint32(16)))
                        E_left[(128 + m_i) * 64 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] = T.Cast("uint16", T.shift_right(T.reinterpret("uint32", ((C_tile[m_i * 32 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", C_tile[m_i * 32 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (C_tile[m_i * 32 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", C_tile[m_i * 32 + ((T.min(32, 70 - (n_t * 32))) // 16) * 16 + n_r]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)))
                for j0 in range(2):
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            E_right[((T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            E_right[(16 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            E_right[(32 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            E_right[(48 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            E_right[((3 + 1) * 16 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for z in range(((T.min(32, 70 - (n_t * 32)) + 31) // 32) * 16 - ((T.min(32, 70 - (n_t * 32)) + 1) // 2)):
                        for j in T.vectorized(16):
                            E_right[((3 + 2) * 16 + (T.min(32, 70 - (n_t * 32)) + 1) // 2 + z) * 16 + j] = T.uint32(0)
                    for e in range((T.min(32, 70 - (n_t * 32))) // 2):
                        for j in T.vectorized(16):
                            E_right[e * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", D_panels[j0, e * 2, j]), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2 + 1, j]), T.uint32(4294901760)))
                            E_right[(16 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", (D_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2, j]), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", (D_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2 + 1, j]), T.uint32(4294901760))))), T.uint32(4294901760)))
                            E_right[(32 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", ((D_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (D_panels[j0, e * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", ((D_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2 + 1, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (D_panels[j0, e * 2 + 1, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2 + 1, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(4294901760)))
                        for j in T.vectorized(16):
                            E_right[(48 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", D_panels[j0, e * 2, 16 + j]), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760)))
                            E_right[((3 + 1) * 16 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", (D_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", (D_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760)))
                            E_right[((3 + 2) * 16 + e) * 16 + j] = T.bitwise_or(T.shift_right(T.reinterpret("uint32", ((D_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (D_panels[j0, e * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16)), T.bitwise_and(T.reinterpret("uint32", ((D_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (D_panels[j0, e * 2 + 1, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, e * 2 + 1, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(4294901760)))
                    if (T.min(32, 70 - (n_t * 32))) % 2 == 1:
                        for j in T.vectorized(16):
                            E_right[((T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j]), T.uint32(16))
                            E_right[(16 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", (D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j]), T.uint32(4294901760))))), T.uint32(16))
                            E_right[(32 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", ((D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16))
                        for j in T.vectorized(16):
                            E_right[(48 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j]), T.uint32(16))
                            E_right[((3 + 1) * 16 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", (D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(16))
                            E_right[((3 + 2) * 16 + (T.min(32, 70 - (n_t * 32))) // 2) * 16 + j] = T.shift_right(T.reinterpret("uint32", ((D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j]), T.uint32(4294901760)))) - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", (D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j] - T.reinterpret("float32", T.bitwise_and(T.reinterpret("uint32", D_panels[j0, ((T.min(32, 70 - (n_t * 32))) // 2) * 2, 16 + j]), T.uint32(4294901760))))), T.uint32(4294901760))))), T.uint32(16))
                    for i0 in range((T.min(64, 100 - (m_t * 64)) + 31) // 32):
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(0), T.address_of(E_tile[i0 * 32 * 64 + j0 * 32]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(1), T.address_of(E_tile[i0 * 32 * 64 + j0 * 32 + 16]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(2), T.address_of(E_tile[(i0 * 32 + 16) * 64 + j0 * 32]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(3), T.address_of(E_tile[(i0 * 32 + 16) * 64 + j0 * 32 + 16]), T.int64(256)))
                        for k0 in range((T.min(32, 70 - (n_t * 32)) + 31) // 32):
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(E_left[i0 * 32 * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(E_left[(i0 * 32 + 16) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(E_right[(32 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(E_right[((3 + 2) * 16 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(E_right[(16 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(E_right[((3 + 1) * 16 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(E_left[(64 + i0 * 32) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(E_left[(64 + i0 * 32 + 16) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(6), T.address_of(E_right[k0 * 16 * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(7), T.address_of(E_right[(48 + k0 * 16) * 16]), T.int64(64)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(E_left[(128 + i0 * 32) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(E_left[(128 + i0 * 32 + 16) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(4), T.address_of(E_left[i0 * 32 * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tileloadd64", T.int8(5), T.address_of(E_left[(i0 * 32 + 16) * 64 + k0 * 32]), T.int64(128)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(0), T.int8(4), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(1), T.int8(4), T.int8(7)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(2), T.int8(5), T.int8(6)))
                            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tdpbf16ps", T.int8(3), T.int8(5), T.int8(7)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(0), T.address_of(E_tile[i0 * 32 * 64 + j0 * 32]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(1), T.address_of(E_tile[i0 * 32 * 64 + j0 * 32 + 16]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(2), T.address_of(E_tile[(i0 * 32 + 16) * 64 + j0 * 32]), T.int64(256)))
                        T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilestored64", T.int8(3), T.address_of(E_tile[(i0 * 32 + 16) * 64 + j0 * 32 + 16]), T.int64(256)))
            for m_i in range(T.min(64, 100 - (m_t * 64))):
                for h_v in range(3):
                    for h_l in T.vectorized(16):
                        E_flat[b_t * 4800 + (m_t * 64 + m_i) * 48 + h_v * 16 + h_l] = E_tile[m_i * 64 + h_v * 16 + h_l]
            T.evaluate(T.call_llvm_intrin("void", "llvm.x86.tilerelease"))
