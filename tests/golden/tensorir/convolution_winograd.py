# chain as mn.kst p=1 m=26 n=16 k=5 s=3 t=3
@T.prim_func(s_tir=True, private=True)
def kernel(A_arg: T.Buffer((675,), "float32"), B_arg: T.Buffer((2560,), "float32"), D_arg: T.Buffer((24,), "float32"), R_arg: T.Buffer((2184,), "float32"), E_arg: T.Buffer((2184,), "float32")):
    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
    A_flat = T.decl_buffer((675,), "float32", data=A_arg.data)
    B_flat = T.decl_buffer((2560,), "float32", data=B_arg.data)
    D_flat = T.decl_buffer((24,), "float32", data=D_arg.data)
    R_flat = T.decl_buffer((2184,), "float32", data=R_arg.data)
    E_flat = T.decl_buffer((2184,), "float32", data=E_arg.data)
    with T.sblock("root"):
        T.reads()
        T.writes()
        for t in T.parallel(8):
            m_t: T.let[T.int32] = t // 2
            n_t: T.let[T.int32] = t % 2
            C_tile = T.alloc_buffer((1, 1, 26, 16), "float32")
            C_lines = T.alloc_buffer((4, 16), "float32")
            C_turned = T.alloc_buffer((16, 5, 8), "float32")
            C_numbers = T.alloc_buffer((16, 8, 16), "float32")
            C_half = T.alloc_buffer((2, 4, 8), "float32")
            acc0 = T.alloc_buffer((4, 8), "float32")
            acc1 = T.alloc_buffer((4, 8), "float32")
            lane = T.alloc_buffer((8,), "float32")
            once = T.alloc_buffer((8,), "float32")
            C_lines[0, 15] = T.float32(0)
            C_lines[1, 15] = T.float32(0)
            C_lines[2, 15] = T.float32(0)
            C_lines[3, 15] = T.float32(0)
            for k_i in range(5):
                for piece_y in range(((T.min(26, 91 - (m_t * 26))) // 13 + 1) // 2):
                    corner: T.let[T.int32] = k_i * 135 + ((m_t * 26 + piece_y * 2 * 13) // 13) * 15 + (m_t * 26 + piece_y * 2 * 13) % 13
                    for x_v in range(1):
                        for x_l in T.vectorized(8):
                            C_lines[0, x_v * 8 + x_l] = A_flat[corner + x_v * 8 + x_l] - A_flat[corner + 30 + x_v * 8 + x_l]
                            C_lines[1, x_v * 8 + x_l] = A_flat[corner + 15 + x_v * 8 + x_l] + A_flat[corner + 30 + x_v * 8 + x_l]
                            C_lines[2, x_v * 8 + x_l] = A_flat[corner + 30 + x_v * 8 + x_l] - A_flat[corner + 15 + x_v * 8 + x_l]
                            C_lines[3, x_v * 8 + x_l] = A_flat[corner + 15 + x_v * 8 + x_l] - A_flat[corner + (T.min(3, 8 - ((m_t * 26) // 13 + piece_y * 2))) * 15 + x_v * 8 + x_l]
                    for x_l in T.vectorized(4):
                        C_lines[0, 8 + x_l] = A_flat[corner + 8 + x_l] - A_flat[corner + 30 + 8 + x_l]
                        C_lines[1, 8 + x_l] = A_flat[corner + 15 + 8 + x_l] + A_flat[corner + 30 + 8 + x_l]
                        C_lines[2, 8 + x_l] = A_flat[corner + 30 + 8 + x_l] - A_flat[corner + 15 + 8 + x_l]
                        C_lines[3, 8 + x_l] = A_flat[corner + 15 + 8 + x_l] - A_flat[corner + (T.min(3, 8 - ((m_t * 26) // 13 + piece_y * 2))) * 15 + 8 + x_l]
                    for x_r in range(3):
                        C_lines[0, 12 + x_r] = A_flat[corner + 12 + x_r] - A_flat[corner + 30 + 12 + x_r]
                        C_lines[1, 12 + x_r] = A_flat[corner + 15 + 12 + x_r] + A_flat[corner + 30 + 12 + x_r]
                        C_lines[2, 12 + x_r] = A_flat[corner + 30 + 12 + x_r] - A_flat[corner + 15 + 12 + x_r]
                        C_lines[3, 12 + x_r] = A_flat[corner + 15 + 12 + x_r] - A_flat[corner + (T.min(3, 8 - ((m_t * 26) // 13 + piece_y * 2))) * 15 + 12 + x_r]
                    for x_v in range(1):
                        for x_l in T.vectorized(4):
                            for u in range(4):
                                C_turned[u * 4, k_i, piece_y * 7 + x_v * 4 + x_l] = C_lines[u, (x_v * 4 + x_l) * 2] - C_lines[u, (x_v * 4 + x_l) * 2 + 2]
                                C_turned[u * 4 + 1, k_i, piece_y * 7 + x_v * 4 + x_l] = C_lines[u, (x_v * 4 + x_l) * 2 + 1] + C_lines[u, (x_v * 4 + x_l) * 2 + 2]
                                C_turned[u * 4 + 2, k_i, piece_y * 7 + x_v * 4 + x_l] = C_lines[u, (x_v * 4 + x_l) * 2 + 2] - C_lines[u, (x_v * 4 + x_l) * 2 + 1]
                                C_turned[u * 4 + 3, k_i, piece_y * 7 + x_v * 4 + x_l] = C_lines[u, (x_v * 4 + x_l) * 2 + 1] - C_lines[u, (x_v * 4 + x_l) * 2 + 3]
                    for x_r in range(3):
                        for u in range(4):
                            C_turned[u * 4, k_i, piece_y * 7 + 4 + x_r] = C_lines[u, (4 + x_r) * 2] - C_lines[u, (4 + x_r) * 2 + 2]
                            C_turned[u * 4 + 1, k_i, piece_y * 7 + 4 + x_r] = C_lines[u, (4 + x_r) * 2 + 1] + C_lines[u, (4 + x_r) * 2 + 2]
                            C_turned[u * 4 + 2, k_i, piece_y * 7 + 4 + x_r] = C_lines[u, (4 + x_r) * 2 + 2] - C_lines[u, (4 + x_r) * 2 + 1]
                            C_turned[u * 4 + 3, k_i, piece_y * 7 + 4 + x_r] = C_lines[u, (4 + x_r) * 2 + 1] - C_lines[u, (4 + x_r) * 2 + 3]
            for e in range(16):
                for k_i in range(5):
                    for i in range((((((T.min(26, 91 - (m_t * 26))) // 13 + 1) // 2) * 7 + 3) // 4) * 4 - ((((T.min(26, 91 - (m_t * 26))) // 13 + 1) // 2) * 7)):
                        C_turned[e, k_i, (((T.min(26, 91 - (m_t * 26))) // 13 + 1) // 2) * 7 + i] = T.float32(0)
            for j0 in range((T.min(16, 24 - (n_t * 16)) + 15) // 16):
                for e in range(16):
                    for i0 in range(((((T.min(26, 91 - (m_t * 26))) // 13 + 1) // 2) * 7 + 3) // 4):
                        for i in T.unroll(4):
                            for j in T.vectorized(8):
                                acc0[i, j] = T.float32(0)
                        for i in T.unroll(4):
                            for j in T.vectorized(8):
                                acc1[i, j] = T.float32(0)
                        for k_i in range(5):
                            for i in T.unroll(4):
                                for j in T.vectorized(8):
                                    acc0[i, j] = acc0[i, j] + C_turned[e, k_i, i0 * 4 + i] * B_flat[((n_t * 16) // 16 + j0) * 1280 + (e * 5 + k_i) * 16 + j]
                                for j in T.vectorized(8):
                                    acc1[i, j] = acc1[i, j] + C_turned[e, k_i, i0 * 4 + i] * B_flat[((n_t * 16) // 16 + j0) * 1280 + (e * 5 + k_i) * 16 + 8 + j]
                        for i in T.unroll(4):
                            for j in T.vectorized(8):
                                C_numbers[e, i0 * 4 + i, j] = acc0[i, j]
                        for i in T.unroll(4):
                            for j in T.vectorized(8):
                                C_numbers[e, i0 * 4 + i, 8 + j] = acc1[i, j]
                for piece_y in range(((T.min(26, 91 - (m_t * 26))) // 13 + 1) // 2):
                    for piece_x in range(7):
                        for b in range(4):
                            for j in T.vectorized(8):
                                C_half[0, b, j] = C_numbers[b, piece_y * 7 + piece_x, j] + C_numbers[4 + b, piece_y * 7 + piece_x, j] + C_numbers[8 + b, piece_y * 7 + piece_x, j]
                                C_half[1, b, j] = C_numbers[4 + b, piece_y * 7 + piece_x, j] - C_numbers[8 + b, piece_y * 7 + piece_x, j] - C_numbers[12 + b, piece_y * 7 + piece_x, j]
                        for a in range(2):
                            if piece_y * 2 + a < (T.min(26, 91 - (m_t * 26))) // 13:
                                for j in T.vectorized(8):
                                    C_tile[0, 0, (piece_y * 2 + a) * 13 + piece_x * 2, j0 * 16 + j] = C_half[a, 0, j] + C_half[a, 1, j] + C_half[a, 2, j]
                                if piece_x * 2 + 1 < 13:
                                    for j in T.vectorized(8):
                                        C_tile[0, 0, (piece_y * 2 + a) * 13 + piece_x * 2 + 1, j0 * 16 + j] = C_half[a, 1, j] - C_half[a, 2, j] - C_half[a, 3, j]
                        for b in range(4):
                            for j in T.vectorized(8):
                                C_half[0, b, j] = C_numbers[b, piece_y * 7 + piece_x, 8 + j] + C_numbers[4 + b, piece_y * 7 + piece_x, 8 + j] + C_numbers[8 + b, piece_y * 7 + piece_x, 8 + j]
                                C_half[1, b, j] = C_numbers[4 + b, piece_y * 7 + piece_x, 8 + j] - C_numbers[8 + b, piece_y * 7 + piece_x, 8 + j] - C_numbers[12 + b, piece_y * 7 + piece_x, 8 + j]
                        for a in range(2):
                            if piece_y * 2 + a < (T.min(26, 91 - (m_t * 26))) // 13:
                                for j in T.vectorized(8):
                                    C_tile[0, 0, (piece_y * 2 + a) * 13 + piece_x * 2, j0 * 16 + 8 + j] = C_half[a, 0, j] + C_half[a, 1, j] + C_half[a, 2, j]
                                if piece_x * 2 + 1 < 13:
                                    for j in T.vectorized(8):
                                        C_tile[0, 0, (piece_y * 2 + a) * 13 + piece_x * 2 + 1, j0 * 16 + 8 + j] = C_half[a, 1, j] - C_half[a, 2, j] - C_half[a, 3, j]
            for m_i in range(T.min(26, 91 - (m_t * 26))):
                for n_v in range((T.min(16, 24 - (n_t * 16))) // 8):
                    for n_l in T.vectorized(8):
                        E_flat[(m_t * 26 + m_i) * 24 + n_t * 16 + n_v * 8 + n_l] = T.max(T.float32(0.0), ((C_tile[0, 0, m_i, n_v * 8 + n_l] + D_flat[n_t * 16 + n_v * 8 + n_l]) + R_flat[(m_t * 26 + m_i) * 24 + n_t * 16 + n_v * 8 + n_l]))
                for n_r in range((T.min(16, 24 - (n_t * 16))) % 8):
                    E_flat[(m_t * 26 + m_i) * 24 + n_t * 16 + ((T.min(16, 24 - (n_t * 16))) // 8) * 8 + n_r] = T.max(T.float32(0.0), ((C_tile[0, 0, m_i, ((T.min(16, 24 - (n_t * 16))) // 8) * 8 + n_r] + D_flat[n_t * 16 + ((T.min(16, 24 - (n_t * 16))) // 8) * 8 + n_r]) + R_flat[(m_t * 26 + m_i) * 24 + n_t * 16 + ((T.min(16, 24 - (n_t * 16))) // 8) * 8 + n_r]))
