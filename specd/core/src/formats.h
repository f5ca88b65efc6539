// Where the bytes of a packed matrix lie. Read by the packer and by the kernels alike.
//
// A block is 16 output rows over all columns. F32: [column][row]; BF16: [column / 2][row][2].
// Others: groups of 32 columns, each [scales][quants]; K kinds have a header before 8 groups.
// Quants: byte (row * 4 + k) of vector i belongs to column 4 i + k, unsigned, offset removed by the
// minimum. Low 4 bits: vector i in the low and vector i + 4 in the high nibbles of 64 bytes.
// 5 bits: then a bit plane, 8 bytes per vector. 6 bits: then 2-bit planes of 4 vectors each.
#pragma once

#include "core.h"

constexpr int64_t LANES = 16;
constexpr int64_t GROUP = 32;
constexpr int64_t SUPER = 8;  // groups per header

enum Kind { KIND_S, KIND_M, KIND_K, KIND_K16_S, KIND_K16_M };

struct Shape {
    int bits;
    Kind kind;
    int offset;  // what the stored quant exceeds the true one by, for kinds without a minimum
};

constexpr Shape shape_of(Format format) {
    switch (format) {
        case FORMAT_Q4_S: return {4, KIND_S, 8};
        case FORMAT_Q4_M: return {4, KIND_M, 0};
        case FORMAT_Q4_K: return {4, KIND_K, 0};
        case FORMAT_Q5_S: return {5, KIND_S, 16};
        case FORMAT_Q5_M: return {5, KIND_M, 0};
        case FORMAT_Q5_K: return {5, KIND_K, 0};
        case FORMAT_Q6_K: return {6, KIND_K16_S, 32};
        case FORMAT_Q8_S: return {8, KIND_S, 128};
        default: return {4, KIND_K16_M, 0};  // FORMAT_Q2_K
    }
}

constexpr int64_t header_bytes(Kind kind) {
    return kind == KIND_K || kind == KIND_K16_M ? 64 : kind == KIND_K16_S ? 32 : 0;
}
constexpr int64_t scale_bytes(Kind kind) {
    return kind == KIND_M || kind == KIND_K16_M ? 64 : 32;
}
constexpr int64_t quant_bytes(int bits) {
    return bits == 4 ? 256 : bits == 5 ? 320 : bits == 6 ? 384 : 512;
}
constexpr int64_t group_bytes(Shape shape) {
    return scale_bytes(shape.kind) + quant_bytes(shape.bits);
}

// Bytes of a block of 16 rows.
constexpr int64_t block_bytes(Format format, int64_t columns) {
    if (format == FORMAT_F32) return LANES * columns * 4;
    if (format == FORMAT_BF16) return LANES * columns * 2;
    Shape shape = shape_of(format);
    return columns / GROUP * group_bytes(shape) +
           columns / (GROUP * SUPER) * header_bytes(shape.kind);
}

constexpr int64_t blocks_of(int64_t rows) { return (rows + LANES - 1) / LANES; }

// Where group `group` begins, behind its header if it is the first below one.
constexpr int64_t group_offset(Shape shape, int64_t group) {
    int64_t headers = header_bytes(shape.kind) ? group / SUPER + 1 : 0;
    return group * group_bytes(shape) + headers * header_bytes(shape.kind);
}
