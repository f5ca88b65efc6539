// Products of packed weights with activations, 16 output rows by 1 to TILE positions at a time.
// Included once per instruction set.
//
// An output is one sum over the groups of 32 columns, in order, whatever the tile: integer products
// are exact, and each group adds scale * product and minimum * sum with fused operations.

// More positions share a load of the weights; the sums of a tile have to fit the registers.
constexpr int TILE = WIDE_REGISTERS ? 16 : 8;
constexpr int64_t PREFETCH_DISTANCE = 4096;  // bytes; 1,536 was slower, at 8 positions by a third

template <int BITS> inline void load_quants(const uint8_t* p, I w[8]) {
    if constexpr (BITS == 8) {
        for (int i = 0; i < 8; ++i) w[i] = i_load(p + 64 * i);
        return;
    }
    const I low = i_set1_u8(15);
    for (int i = 0; i < 4; ++i) {
        I nibbles = i_load(p + 64 * i);
        w[i] = i_and(nibbles, low);
        w[i + 4] = i_and(i_right<4>(nibbles), low);
    }
    if constexpr (BITS == 5) {
        const I high = i_set1_u8(16);
        for (int i = 0; i < 8; ++i) w[i] = i_add_where(w[i], p + 256 + 8 * i, high);
    }
    if constexpr (BITS == 6) {
        const I mask = i_set1_u8(0x30);
        for (int half = 0; half < 2; ++half) {
            I plane = i_load(p + 256 + 64 * half);
            I* v = w + 4 * half;
            v[0] = i_or(v[0], i_and(i_left<4>(plane), mask));
            v[1] = i_or(v[1], i_and(i_left<2>(plane), mask));
            v[2] = i_or(v[2], i_and(plane, mask));
            v[3] = i_or(v[3], i_and(i_right<2>(plane), mask));
        }
    }
}

inline const uint16_t* halves(const uint8_t* p) { return reinterpret_cast<const uint16_t*>(p); }

inline I four(const int8_t* quants) {  // 4 activations, the same in all lanes
    int32_t bytes;
    std::memcpy(&bytes, quants, 4);
    return i_set1(bytes);
}

// Several positions keep the processor busy for longer than its own prefetching reaches ahead:
// without this, 8 positions took the time of the memory and of the arithmetic one after the other.
template <int64_t BYTES> inline void prefetch(const uint8_t* p) {
    for (int64_t i = 0; i < BYTES; i += 64) _mm_prefetch(p + PREFETCH_DISTANCE + i, _MM_HINT_T0);
}

template <bool WIDE, int FROM, int TO> inline F dot(const I w[8], const int8_t* quants) {
    I sum = i_zero();
#pragma GCC unroll 8
    for (int i = FROM; i < TO; ++i) {
        sum = WIDE ? i_dot_wide(sum, w[i], four(quants + 4 * i))
                   : i_dot(sum, w[i], four(quants + 4 * i));
    }
    return f_from_i(sum);
}

template <Format FORMAT, int COUNT>
inline void tile_quants(const uint8_t* p, const Activations& x, int64_t m, float* out) {
    constexpr Shape shape = shape_of(FORMAT);
    constexpr bool in_16 = shape.kind == KIND_K16_S || shape.kind == KIND_K16_M;
    constexpr bool wide = shape.bits == 8;
    const int64_t groups = x.columns / GROUP;
    const F offset = f_set1(-static_cast<float>(shape.offset));
    F sums[COUNT];
    for (int i = 0; i < COUNT; ++i) sums[i] = f_zero();
    F d = f_zero(), dmin = f_zero();
    for (int64_t g = 0; g < groups; ++g) {
        if constexpr (header_bytes(shape.kind) > 0) {
            if (g % SUPER == 0) {
                d = f_from_half(halves(p));
                if constexpr (header_bytes(shape.kind) == 64) {
                    dmin = f_sub(f_zero(), f_from_half(halves(p + 32)));
                }
                p += header_bytes(shape.kind);
            }
        }
        F scale, minimum, scale_b = f_zero(), minimum_b = f_zero();
        if constexpr (shape.kind == KIND_S) {
            scale = f_from_half(halves(p));
            minimum = f_mul(scale, offset);
        } else if constexpr (shape.kind == KIND_M) {
            scale = f_from_half(halves(p));
            minimum = f_from_half(halves(p + 32));
        } else if constexpr (shape.kind == KIND_K) {
            scale = f_mul(d, f_from_u8(p));
            minimum = f_mul(dmin, f_from_u8(p + 16));
        } else if constexpr (shape.kind == KIND_K16_S) {
            scale = f_mul(d, f_from_i8(p));
            scale_b = f_mul(d, f_from_i8(p + 16));
            minimum = f_mul(scale, offset);
            minimum_b = f_mul(scale_b, offset);
        } else {
            scale = f_mul(d, f_from_u8(p));
            scale_b = f_mul(d, f_from_u8(p + 16));
            minimum = f_mul(dmin, f_from_u8(p + 32));
            minimum_b = f_mul(dmin, f_from_u8(p + 48));
        }
        I w[8];
        load_quants<shape.bits>(p + scale_bytes(shape.kind), w);
        prefetch<group_bytes(shape)>(p);
        p += group_bytes(shape);
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; ++i) {
            const int8_t* quants = x.quants + (m + i) * x.columns + g * GROUP;
            const int64_t at = (m + i) * groups + g;
            const F x_scale = f_set1(x.scales[at]);
            if constexpr (in_16) {
                F both = f_mul(dot<wide, 0, 4>(w, quants), scale);
                both = f_fma(dot<wide, 4, 8>(w, quants), scale_b, both);
                sums[i] = f_fma(both, x_scale, sums[i]);
                sums[i] = f_fma(minimum, f_set1(x.sums16[2 * at]), sums[i]);
                sums[i] = f_fma(minimum_b, f_set1(x.sums16[2 * at + 1]), sums[i]);
            } else {
                F product = dot<wide, 0, 8>(w, quants);
                sums[i] = f_fma(product, f_mul(scale, x_scale), sums[i]);
                sums[i] = f_fma(minimum, f_set1(x.sums32[at]), sums[i]);
            }
        }
    }
    for (int i = 0; i < COUNT; ++i) f_store(out + LANES * i, sums[i]);
}

template <int COUNT>
inline void tile_fp32(const uint8_t* p, const Activations& x, int64_t m, float* out) {
    const float* w = reinterpret_cast<const float*>(p);
    F sums[COUNT];
    for (int i = 0; i < COUNT; ++i) sums[i] = f_zero();
    for (int64_t c = 0; c < x.columns; ++c) {
        const F column = f_load(w + LANES * c);
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; ++i) {
            sums[i] = f_fma(column, f_set1(x.fp32[(m + i) * x.columns + c]), sums[i]);
        }
    }
    for (int i = 0; i < COUNT; ++i) f_store(out + LANES * i, sums[i]);
}

template <int COUNT>
inline void tile_bf16(const uint8_t* p, const Activations& x, int64_t m, float* out) {
    F sums[COUNT];
    for (int i = 0; i < COUNT; ++i) sums[i] = f_zero();
    for (int64_t c = 0; c < x.columns; c += 2) {
        const I pair = i_load(p + 2 * LANES * c);
#pragma GCC unroll 16
        for (int i = 0; i < COUNT; ++i) {
#if SPECD_BF16
            sums[i] = f_dot_bf16(sums[i], pair, x.bf16 + (m + i) * x.columns + c);
#else
            const float* value = x.fp32 + (m + i) * x.columns + c;
            sums[i] = f_fma(f_low_bf16(pair), f_set1(value[0]), sums[i]);
            sums[i] = f_fma(f_high_bf16(pair), f_set1(value[1]), sums[i]);
#endif
        }
    }
    for (int i = 0; i < COUNT; ++i) f_store(out + LANES * i, sums[i]);
}

template <Format FORMAT, int COUNT>
void tile(const uint8_t* block, const Activations& x, int64_t m, float* out) {
    if constexpr (FORMAT == FORMAT_F32) {
        tile_fp32<COUNT>(block, x, m, out);
    } else if constexpr (FORMAT == FORMAT_BF16) {
        tile_bf16<COUNT>(block, x, m, out);
    } else {
        tile_quants<FORMAT, COUNT>(block, x, m, out);
    }
}

using TileFunction = void (*)(const uint8_t*, const Activations&, int64_t, float*);

// TILES[format][count - 1] multiplies 16 rows by `count` positions.
using TileRow = std::array<TileFunction, TILE>;

template <Format FORMAT, int... COUNTS>
constexpr TileRow tile_row(std::integer_sequence<int, COUNTS...>) {
    return {tile<FORMAT, COUNTS + 1>...};
}

template <int... FORMATS>
constexpr std::array<TileRow, NUM_FORMATS> all_tiles(std::integer_sequence<int, FORMATS...>) {
    return {tile_row<static_cast<Format>(FORMATS)>(std::make_integer_sequence<int, TILE>())...};
}

constexpr auto TILES = all_tiles(std::make_integer_sequence<int, NUM_FORMATS>());

// Block `index` of all blocks of a layer's parts, and the outputs that it makes.
struct Block {
    const uint8_t* data;
    Format format;
    int64_t row;    // first output
    int64_t count;  // outputs, 16 but for the last of a part
};

inline int64_t num_blocks(const Linear& linear) {
    int64_t total = 0;
    for (int64_t i = 0; i < linear.num_parts; ++i) total += blocks_of(linear.parts[i].rows);
    return total;
}

inline Block block_at(const Linear& linear, int64_t index) {
    int64_t row = 0;
    const Part* part = linear.parts;
    while (index >= blocks_of(part->rows)) {
        index -= blocks_of(part->rows);
        row += part->rows;
        ++part;
    }
    Format format = static_cast<Format>(part->format);
    int64_t left = part->rows - index * LANES;
    return {part->data + index * block_bytes(format, linear.columns), format,
            row + index * LANES, left < LANES ? left : LANES};
}

// Blocks that one task takes: large enough to be worth taking, small enough to share and to stay
// in the second cache while the positions of a prompt pass by.
inline int64_t grain_of(const Linear& linear, int64_t blocks, int threads) {
    int64_t bytes = block_bytes(static_cast<Format>(linear.parts->format), linear.columns);
    int64_t grain = (96 << 10) / bytes + 1;
    int64_t fair = blocks / (threads * 4);
    return grain < fair ? grain : fair > 1 ? fair : 1;
}

// Give each output of positions 0 to `positions` to `put(position, block, values[16])`.
template <class Put>
void multiply(Crew& crew, const Linear& linear, const Activations& x, int64_t positions, Put put) {
    const int64_t blocks = num_blocks(linear);
    crew.phase(blocks, grain_of(linear, blocks, crew.num_threads()), [&](int64_t first,
                                                                         int64_t last) {
        alignas(64) float out[TILE * LANES];
        for (int64_t m = 0; m < positions; m += TILE) {
            const int64_t count = positions - m < TILE ? positions - m : TILE;
            for (int64_t index = first; index < last; ++index) {
                const Block block = block_at(linear, index);
                TILES[block.format][count - 1](block.data, x, m, out);
                for (int64_t i = 0; i < count; ++i) put(m + i, block, out + LANES * i);
            }
        }
    });
}

inline F with_bias(const Linear& linear, const Block& block, const float* values) {
    if (!linear.bias) return f_load(values);
    if (block.count == LANES) return f_add(f_load(values), f_load(linear.bias + block.row));
    alignas(64) float bias[LANES] = {};
    for (int64_t i = 0; i < block.count; ++i) bias[i] = linear.bias[block.row + i];
    return f_add(f_load(values), f_load(bias));
}

inline void put_lanes(float* to, const Block& block, F values) {
    if (block.count == LANES) return f_store(to, values);
    alignas(64) float lanes[LANES];
    f_store(lanes, values);
    for (int64_t i = 0; i < block.count; ++i) to[i] = lanes[i];
}

// out [positions, stride] = W x + bias.
inline void multiply_into(Crew& crew, const Linear& linear, const Activations& x,
                          int64_t positions, float* out, int64_t stride) {
    multiply(crew, linear, x, positions, [&](int64_t m, const Block& block, const float* values) {
        put_lanes(out + m * stride + block.row, block, with_bias(linear, block, values));
    });
}

// out [positions, stride] += W x + bias; rows are a multiple of 16.
inline void multiply_onto(Crew& crew, const Linear& linear, const Activations& x,
                          int64_t positions, float* out, int64_t stride) {
    multiply(crew, linear, x, positions, [&](int64_t m, const Block& block, const float* values) {
        float* to = out + m * stride + block.row;
        f_store(to, f_add(f_load(to), with_bias(linear, block, values)));
    });
}

// activate(gate) * up as activations of the next layer, 32 columns per task.
inline void multiply_gated(Crew& crew, const Layer& layer, int64_t activation,
                           const Activations& x, int64_t positions, const Activations& out,
                           int needs) {
    const int64_t units = out.columns / GROUP;
    const int64_t grain = grain_of(layer.gate, units / 2, crew.num_threads());
    crew.phase(units, grain, [&](int64_t first, int64_t last) {
        alignas(64) float gate[2][TILE * LANES], up[2][TILE * LANES];
        for (int64_t m = 0; m < positions; m += TILE) {
            const int64_t count = positions - m < TILE ? positions - m : TILE;
            for (int64_t unit = first; unit < last; ++unit) {
                for (int half = 0; half < 2; ++half) {
                    const Block g = block_at(layer.gate, 2 * unit + half);
                    const Block u = block_at(layer.up, 2 * unit + half);
                    TILES[g.format][count - 1](g.data, x, m, gate[half]);
                    TILES[u.format][count - 1](u.data, x, m, up[half]);
                }
                for (int64_t i = 0; i < count; ++i) {
                    F values[2];
                    for (int half = 0; half < 2; ++half) {
                        F g = f_load(gate[half] + LANES * i), u = f_load(up[half] + LANES * i);
                        values[half] = f_mul(f_activate(activation, g), u);
                    }
                    set_group(out, needs, m + i, unit * GROUP, values[0], values[1]);
                }
            }
        }
    });
}
