// What a linear layer is given: activations in the format that its weights multiply.
// Included once per instruction set.
//
// Quantised weights take 8-bit activations in groups of 32: value = scale * quant. Sums of a
// group's values go with the weights' minimum. A value that is not finite makes its scale NaN, and
// so every output of that position.

struct Activations {
    int64_t columns = 0;
    int8_t* quants = nullptr;    // [positions, columns]
    float* scales = nullptr;     // [positions, columns / 32]
    float* sums32 = nullptr;     // [positions, columns / 32]
    float* sums16 = nullptr;     // [positions, columns / 16]
    uint16_t* bf16 = nullptr;    // [positions, columns]
    float* fp32 = nullptr;       // [positions, columns]
};

constexpr int NEEDS_QUANTS = 1, NEEDS_BF16 = 2, NEEDS_FP32 = 4;

inline int needs_of(const Linear& linear) {
    int needs = 0;
    for (int64_t i = 0; i < linear.num_parts; ++i) {
        int32_t format = linear.parts[i].format;
#if SPECD_BF16
        bool products = true;
#else
        bool products = false;  // bf16 weights are widened and meet fp32 activations
#endif
        needs |= format == FORMAT_F32 ? NEEDS_FP32
                 : format != FORMAT_BF16 ? NEEDS_QUANTS
                 : products ? NEEDS_BF16 : NEEDS_FP32;
    }
    return needs;
}

// One group of 32 values x of position m, columns c to c + 32.
inline void set_group(const Activations& to, int needs, int64_t m, int64_t c, F a, F b) {
    if (needs & NEEDS_FP32) {
        f_store(to.fp32 + m * to.columns + c, a);
        f_store(to.fp32 + m * to.columns + c + LANES, b);
    }
    if (needs & NEEDS_BF16) {
        f_to_bf16(to.bf16 + m * to.columns + c, a);
        f_to_bf16(to.bf16 + m * to.columns + c + LANES, b);
    }
    if (!(needs & NEEDS_QUANTS)) return;
    float largest = f_largest(f_max(f_abs(a), f_abs(b)));
    float poison = f_sum(f_fma(a, f_zero(), f_mul(b, f_zero())));  // 0, or NaN
    // A group below 1e-36 counts as zeros: 127 / largest would be infinite soon.
    F inverse = f_set1(largest > 1e-36f ? 127.0f / largest : 0.0f);
    I qa = i_from_f(f_mul(a, inverse)), qb = i_from_f(f_mul(b, inverse));
    int8_t* quants = to.quants + m * to.columns + c;
    i_store_i8(quants, qa);
    i_store_i8(quants + LANES, qb);
    float scale = largest / 127.0f + poison;
    float sum_a = static_cast<float>(i_sum(qa)), sum_b = static_cast<float>(i_sum(qb));
    int64_t group = (m * to.columns + c) / GROUP;
    to.scales[group] = scale;
    to.sums32[group] = scale * (sum_a + sum_b);
    to.sums16[2 * group] = scale * sum_a;
    to.sums16[2 * group + 1] = scale * sum_b;
}

inline void set_position(const Activations& to, int needs, int64_t m, const float* x) {
    for (int64_t c = 0; c < to.columns; c += GROUP) {
        set_group(to, needs, m, c, f_load(x + c), f_load(x + c + LANES));
    }
}
