// See packing.h. Layouts of GGUF blocks follow the type definitions of the GGML project.
#include "packing.h"

#include <cmath>
#include <cstring>

namespace {

float from_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
    if (exponent == 0) {
        const float value = std::ldexp(static_cast<float>(mantissa), -24);
        return sign ? -value : value;
    }
    const uint32_t bits = exponent == 31 ? sign | 0x7f800000 | mantissa << 13
                                         : sign | (exponent + 112) << 23 | mantissa << 13;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

uint16_t read16(const uint8_t* p) {
    uint16_t value;
    std::memcpy(&value, p, 2);
    return value;
}

// One row's group of 32 columns, with what its super-block says.
struct Group {
    uint8_t quants[32];     // as stored: unsigned
    uint16_t d, dmin;       // fp16
    uint8_t scale[2];       // per 16; signed for KIND_K16_S. [0] alone where the group is of 32
    uint8_t minimum[2];
};

void low_nibbles(const uint8_t* p, uint8_t* out) {
    for (int i = 0; i < 16; ++i) {
        out[i] = p[i] & 15;
        out[i + 16] = p[i] >> 4;
    }
}

void add_fifth_bits(const uint8_t* p, uint8_t* out) {
    uint32_t bits;
    std::memcpy(&bits, p, 4);
    for (int i = 0; i < 32; ++i) out[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

// 6-bit scale and minimum `index` of a Q4_K or Q5_K super-block; 12 bytes hold 8 of each.
void unpack_k_scale(const uint8_t* p, int index, uint8_t& scale, uint8_t& minimum) {
    if (index < 4) {
        scale = p[index] & 63;
        minimum = p[index + 4] & 63;
    } else {
        scale = static_cast<uint8_t>((p[index + 4] & 15) | (p[index - 4] >> 6) << 4);
        minimum = static_cast<uint8_t>(p[index + 4] >> 4 | (p[index] >> 6) << 4);
    }
}

void q4_k(const uint8_t* p, int g, Group& out) {
    out.d = read16(p);
    out.dmin = read16(p + 2);
    unpack_k_scale(p + 4, g, out.scale[0], out.minimum[0]);
    const uint8_t* nibbles = p + 16 + 32 * (g / 2);
    for (int i = 0; i < 32; ++i) out.quants[i] = g % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
}

void q5_k(const uint8_t* p, int g, Group& out) {
    out.d = read16(p);
    out.dmin = read16(p + 2);
    unpack_k_scale(p + 4, g, out.scale[0], out.minimum[0]);
    const uint8_t* nibbles = p + 48 + 32 * (g / 2);
    for (int i = 0; i < 32; ++i) {
        const uint8_t low = g % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
        out.quants[i] = static_cast<uint8_t>(low | (p[16 + i] >> g & 1) << 4);
    }
}

void q6_k(const uint8_t* p, int g, Group& out) {
    out.d = read16(p + 208);
    const int half = g / 4, part = g % 4;  // 128 columns share 64 low and 32 high bytes
    const uint8_t* low = p + 64 * half + 32 * (part % 2);
    const uint8_t* high = p + 128 + 32 * half;
    for (int i = 0; i < 32; ++i) {
        const uint8_t nibble = part < 2 ? low[i] & 15 : low[i] >> 4;
        out.quants[i] = static_cast<uint8_t>(nibble | (high[i] >> 2 * part & 3) << 4);
    }
    out.scale[0] = p[192 + 2 * g];
    out.scale[1] = p[192 + 2 * g + 1];
}

void q2_k(const uint8_t* p, int g, Group& out) {
    out.d = read16(p + 80);
    out.dmin = read16(p + 82);
    for (int i = 0; i < 2; ++i) {
        out.scale[i] = p[2 * g + i] & 15;
        out.minimum[i] = p[2 * g + i] >> 4;
    }
    const uint8_t* quants = p + 16 + 32 * (g / 4);
    for (int i = 0; i < 32; ++i) out.quants[i] = quants[i] >> 2 * (g % 4) & 3;
}

// 3-bit weights in 6-bit form: the same d and signed scales, quants of the same value.
void q3_k(const uint8_t* p, int g, Group& out) {
    out.d = read16(p + 108);
    const uint8_t* scales = p + 96;
    for (int i = 0; i < 2; ++i) {
        const int index = 2 * g + i;
        const int low = index < 8 ? scales[index] & 15 : scales[index - 8] >> 4;
        const int high = scales[8 + index % 4] >> 2 * (index / 4) & 3;
        out.scale[i] = static_cast<uint8_t>((low | high << 4) - 32);
    }
    const uint8_t* quants = p + 32 + 32 * (g / 4);
    for (int i = 0; i < 32; ++i) {
        const int low = quants[i] >> 2 * (g % 4) & 3;
        const int high = p[i] >> g & 1;
        out.quants[i] = static_cast<uint8_t>(low + (high ? 0 : -4) + 32);
    }
}

void simple(SourceType type, const uint8_t* p, Group& out) {
    out.d = read16(p);
    switch (type) {
        case SOURCE_Q4_0: low_nibbles(p + 2, out.quants); break;
        case SOURCE_Q4_1: out.dmin = read16(p + 2); low_nibbles(p + 4, out.quants); break;
        case SOURCE_Q5_0:
            low_nibbles(p + 6, out.quants);
            add_fifth_bits(p + 2, out.quants);
            break;
        case SOURCE_Q5_1:
            out.dmin = read16(p + 2);
            low_nibbles(p + 8, out.quants);
            add_fifth_bits(p + 4, out.quants);
            break;
        default:
            for (int i = 0; i < 32; ++i) out.quants[i] = static_cast<uint8_t>(p[2 + i] + 128);
    }
}

struct Source {
    SourceType type;
    Format exact;
    int64_t columns, bytes;  // of one block
    void (*super)(const uint8_t*, int, Group&);
};

constexpr Source SOURCES[] = {
    {SOURCE_F32, FORMAT_F32, 1, 4, nullptr},      {SOURCE_F16, FORMAT_F32, 1, 2, nullptr},
    {SOURCE_BF16, FORMAT_BF16, 1, 2, nullptr},    {SOURCE_Q4_0, FORMAT_Q4_S, 32, 18, nullptr},
    {SOURCE_Q4_1, FORMAT_Q4_M, 32, 20, nullptr},  {SOURCE_Q5_0, FORMAT_Q5_S, 32, 22, nullptr},
    {SOURCE_Q5_1, FORMAT_Q5_M, 32, 24, nullptr},  {SOURCE_Q8_0, FORMAT_Q8_S, 32, 34, nullptr},
    {SOURCE_Q2_K, FORMAT_Q2_K, 256, 84, q2_k},    {SOURCE_Q3_K, FORMAT_Q6_K, 256, 110, q3_k},
    {SOURCE_Q4_K, FORMAT_Q4_K, 256, 144, q4_k},   {SOURCE_Q5_K, FORMAT_Q5_K, 256, 176, q5_k},
    {SOURCE_Q6_K, FORMAT_Q6_K, 256, 210, q6_k},
};

const Source* source_of(int32_t type) {
    for (const Source& source : SOURCES) {
        if (source.type == type) return &source;
    }
    return nullptr;
}

void put_half(uint8_t* p, int lane, uint16_t value) { std::memcpy(p + 2 * lane, &value, 2); }

// Where column `k` of row `lane` lies among a group's quants.
int64_t byte_of(int k, int lane) { return 64 * (k / 4) + 4 * lane + k % 4; }

uint32_t read32(const uint8_t* p) {
    uint32_t value;
    std::memcpy(&value, p, 4);
    return value;
}

void add32(uint8_t* p, uint32_t bits) {
    const uint32_t value = read32(p) | bits;
    std::memcpy(p, &value, 4);
}

// Four columns of a row are 4 bytes of a vector. The group's bytes are zero before its first row.
void put_quants(const Shape& shape, const Group& group, int lane, uint8_t* p) {
    constexpr uint32_t nibble = 0x0f0f0f0f, one = 0x01010101, two = 0x03030303;
    for (int vector = 0; vector < 8; ++vector) {
        const uint32_t quants = read32(group.quants + 4 * vector);
        if (shape.bits == 8) {
            add32(p + byte_of(4 * vector, lane), quants);
            continue;
        }
        add32(p + 64 * (vector % 4) + 4 * lane, (quants & nibble) << (vector < 4 ? 0 : 4));
        const uint32_t high = quants >> 4;
        if (shape.bits == 5) {
            // Bit 0 of four bytes, side by side.
            const uint32_t bits = (high & one) * 0x01020408u >> 24;
            p[256 + 8 * vector + lane / 2] |= static_cast<uint8_t>(bits << 4 * (lane % 2));
        } else if (shape.bits == 6) {
            add32(p + 256 + 64 * (vector / 4) + 4 * lane, (high & two) << 2 * (vector % 4));
        }
    }
}

uint8_t get_quant(const Shape& shape, int k, int lane, const uint8_t* p) {
    const int vector = k / 4;
    const int64_t byte = byte_of(k, lane), place = byte % 64;
    if (shape.bits == 8) return p[byte];
    uint8_t quant = p[byte % 256] >> (vector < 4 ? 0 : 4) & 15;
    if (shape.bits == 5) quant |= (p[256 + 8 * vector + place / 8] >> place % 8 & 1) << 4;
    if (shape.bits == 6) quant |= (p[256 + 64 * (vector / 4) + place] >> 2 * (vector % 4) & 3) << 4;
    return quant;
}

void put_scales(Kind kind, const Group& group, int lane, uint8_t* header, uint8_t* p) {
    switch (kind) {
        case KIND_M: put_half(p + 32, lane, group.dmin); [[fallthrough]];
        case KIND_S: put_half(p, lane, group.d); return;
        case KIND_K16_M:
            p[32 + lane] = group.minimum[0];
            p[48 + lane] = group.minimum[1];
            put_half(header + 32, lane, group.dmin);
            break;
        case KIND_K:
            p[16 + lane] = group.minimum[0];
            put_half(header + 32, lane, group.dmin);
            p[lane] = group.scale[0];
            put_half(header, lane, group.d);
            return;
        case KIND_K16_S: break;
    }
    p[lane] = group.scale[0];
    p[16 + lane] = group.scale[1];
    put_half(header, lane, group.d);
}

void pack_quants(const Source& source, const uint8_t* const* rows, int64_t count, int64_t columns,
                 uint8_t* block) {
    const Shape shape = shape_of(source.exact);
    std::memset(block, 0, block_bytes(source.exact, columns));
    for (int64_t g = 0; g < columns / GROUP; ++g) {
        uint8_t* p = block + group_offset(shape, g);
        uint8_t* header = block + group_offset(shape, g / SUPER * SUPER) - header_bytes(shape.kind);
        for (int lane = 0; lane < count; ++lane) {
            Group group{};
            if (source.super) source.super(rows[lane] + g / SUPER * source.bytes, g % SUPER, group);
            else simple(source.type, rows[lane] + g * source.bytes, group);
            put_scales(shape.kind, group, lane, header, p);
            put_quants(shape, group, lane, p + scale_bytes(shape.kind));
        }
    }
}

float read_number(SourceType type, const uint8_t* row, int64_t column) {
    if (type == SOURCE_F16) return from_half(read16(row + 2 * column));
    uint32_t bits;
    if (type == SOURCE_BF16) bits = static_cast<uint32_t>(read16(row + 2 * column)) << 16;
    else std::memcpy(&bits, row + 4 * column, 4);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return 0x7fc0;
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void pack_numbers(SourceType type, Format format, const uint8_t* const* rows, int64_t count,
                  int64_t columns, uint8_t* block) {
    std::memset(block, 0, block_bytes(format, columns));
    for (int lane = 0; lane < count; ++lane) {
        for (int64_t c = 0; c < columns; ++c) {
            const float value = read_number(type, rows[lane], c);
            if (format == FORMAT_F32) {
                std::memcpy(block + 4 * (c * LANES + lane), &value, 4);
            } else {
                const uint16_t narrow = to_bf16(value);
                std::memcpy(block + 4 * (c / 2 * LANES + lane) + 2 * (c % 2), &narrow, 2);
            }
        }
    }
}

void unpack_quants(Format format, const uint8_t* block, int64_t columns, int lane, float* out) {
    const Shape shape = shape_of(format);
    for (int64_t g = 0; g < columns / GROUP; ++g) {
        const uint8_t* p = block + group_offset(shape, g);
        const uint8_t* header =
            block + group_offset(shape, g / SUPER * SUPER) - header_bytes(shape.kind);
        const uint8_t* quants = p + scale_bytes(shape.kind);
        const bool super = header_bytes(shape.kind) > 0;
        const float d = from_half(read16((super ? header : p) + 2 * lane));
        for (int k = 0; k < 32; ++k) {
            const float quant = static_cast<float>(get_quant(shape, k, lane, quants) - shape.offset);
            const int half = k / 16;
            float& value = out[g * GROUP + k];
            switch (shape.kind) {
                case KIND_S: value = quant * d; break;
                case KIND_M: value = quant * d + from_half(read16(p + 32 + 2 * lane)); break;
                case KIND_K:
                    value = d * p[lane] * quant -
                            from_half(read16(header + 32 + 2 * lane)) * p[16 + lane];
                    break;
                case KIND_K16_S:
                    value = d * static_cast<int8_t>(p[16 * half + lane]) * quant;
                    break;
                case KIND_K16_M:
                    value = d * p[16 * half + lane] * quant -
                            from_half(read16(header + 32 + 2 * lane)) * p[32 + 16 * half + lane];
                    break;
            }
        }
    }
}

}  // namespace

int64_t source_bytes(int32_t type, int64_t columns) {
    const Source* source = source_of(type);
    if (!source || columns % source->columns) return -1;
    return columns / source->columns * source->bytes;
}

int32_t exact_format(int32_t type) {
    const Source* source = source_of(type);
    return source ? source->exact : -1;
}

bool has_conversion(int32_t type, int32_t format) {
    const Source* source = source_of(type);
    if (!source) return false;
    const bool number = source->columns == 1;
    return number ? format == FORMAT_F32 || format == FORMAT_BF16 : format == source->exact;
}

int pack_block(SourceType type, Format format, const uint8_t* const* rows, int64_t count,
               int64_t columns, uint8_t* block) {
    if (!has_conversion(type, format)) return -1;
    const Source& source = *source_of(type);
    if (source.columns == 1) pack_numbers(type, format, rows, count, columns, block);
    else pack_quants(source, rows, count, columns, block);
    return 0;
}

void unpack_row(Format format, const uint8_t* packed, int64_t columns, int64_t row, float* out) {
    const uint8_t* block = packed + row / LANES * block_bytes(format, columns);
    const int lane = static_cast<int>(row % LANES);
    if (format == FORMAT_F32) {
        for (int64_t c = 0; c < columns; ++c) {
            std::memcpy(out + c, block + 4 * (c * LANES + lane), 4);
        }
    } else if (format == FORMAT_BF16) {
        for (int64_t c = 0; c < columns; ++c) {
            const uint32_t bits = static_cast<uint32_t>(
                read16(block + 4 * (c / 2 * LANES + lane) + 2 * (c % 2))) << 16;
            std::memcpy(out + c, &bits, 4);
        }
    } else {
        unpack_quants(format, block, columns, lane, out);
    }
}
