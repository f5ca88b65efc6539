// 16 lanes on AVX-512. Included inside a namespace of its own, once per instruction set.
// Same names and same arithmetic as simd_avx2.h: both give the same bits.

constexpr bool WIDE_REGISTERS = true;  // 32 of 16 lanes

using F = __m512;
using I = __m512i;

inline F f_zero() { return _mm512_setzero_ps(); }
inline F f_set1(float x) { return _mm512_set1_ps(x); }
inline F f_load(const float* p) { return _mm512_loadu_ps(p); }
inline void f_store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F f_add(F a, F b) { return _mm512_add_ps(a, b); }
inline F f_sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F f_mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F f_div(F a, F b) { return _mm512_div_ps(a, b); }
inline F f_fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F f_max(F a, F b) { return _mm512_max_ps(a, b); }
inline F f_min(F a, F b) { return _mm512_min_ps(a, b); }
inline F f_abs(F a) { return _mm512_abs_ps(a); }
inline F f_round(F a) { return _mm512_roundscale_ps(a, 0); }
inline F f_from_i(I a) { return _mm512_cvtepi32_ps(a); }
inline I i_from_f(F a) { return _mm512_cvtps_epi32(a); }
// Lanes below `count` of a, the others of b.
inline F f_first(int64_t count, F a, F b) {
    return _mm512_mask_blend_ps(static_cast<__mmask16>((1u << count) - 1u), b, a);
}
// a where x < y, else b (false for NaN).
inline F f_where_less(F x, F y, F a, F b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_LT_OQ), b, a);
}
inline F f_scale_by_power(F x, I n) {  // x * 2^n for normal results
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(n, 23)));
}
inline F f_from_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void f_to_half(uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, 0));
}
inline F f_from_u8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
inline F f_from_i8(const uint8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
// Halves of the 16 lanes are added first, then quarters: the order is the same everywhere.
inline float f_sum(F x) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float f_largest(F x) { return _mm512_reduce_max_ps(x); }

inline I i_zero() { return _mm512_setzero_si512(); }
inline I i_load(const void* p) { return _mm512_loadu_si512(p); }
inline I i_set1(int32_t x) { return _mm512_set1_epi32(x); }
inline I i_set1_u8(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline I i_and(I a, I b) { return _mm512_and_si512(a, b); }
inline I i_or(I a, I b) { return _mm512_or_si512(a, b); }
template <int BITS> inline I i_right(I a) { return _mm512_srli_epi16(a, BITS); }
template <int BITS> inline I i_left(I a) { return _mm512_slli_epi16(a, BITS); }
// b is added to the bytes whose bit is set in the 64 bits at p.
inline I i_add_where(I a, const uint8_t* p, I b) {
    uint64_t bits;
    std::memcpy(&bits, p, 8);
    return _mm512_mask_add_epi8(a, bits, a, b);
}
// sum + products of 4 unsigned bytes of a by 4 signed bytes of b, per lane.
inline I i_dot(I sum, I a, I b) { return _mm512_dpbusd_epi32(sum, a, b); }
inline I i_dot_wide(I sum, I a, I b) { return i_dot(sum, a, b); }  // bytes of a may exceed 127
inline void i_store_i8(int8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
// Wraps: quants made of NaN overflow, which _mm512_reduce_add_epi32 leaves undefined.
inline int32_t i_sum(I x) {
    __m256i a = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}

// bf16: rounds to nearest even (NaN stays NaN).
inline void f_to_bf16(uint16_t* p, F x) {
    I bits = _mm512_castps_si512(x);
    I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    I rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_blend_epi32(nan, rounded, _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}
#if SPECD_BF16
// sum + products of pairs: w holds two bf16 per lane, x the pair that all lanes share.
inline F f_dot_bf16(F sum, I w, const uint16_t* x) {
    int32_t pair;
    std::memcpy(&pair, x, 4);
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair));
}
#endif
inline F f_low_bf16(I w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
inline F f_high_bf16(I w) {
    return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// --- What sampling needs: 32-bit integers, lanes as bits of a number, sums of weights ---

inline I i_add32(I a, I b) { return _mm512_add_epi32(a, b); }
inline I i_xor(I a, I b) { return _mm512_xor_si512(a, b); }
inline I i_mul32(I a, I b) { return _mm512_mullo_epi32(a, b); }  // the low 32 bits
template <int BITS> inline I i_right32(I a) { return _mm512_srli_epi32(a, BITS); }
inline I i_lanes() {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline I i_bits(F a) { return _mm512_castps_si512(a); }
inline void i_store(void* p, I a) { _mm512_storeu_si512(p, a); }
// Lanes where a >= b (not where either is NaN).
inline uint32_t f_at_least(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline F f_keep_nan(F a, F b) {  // b where it is NaN, else a
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), b);
}
// The chosen lanes side by side; returns how many. All 16 floats at p may be written.
inline int64_t f_store_where(float* p, F a, uint32_t lanes) {
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(lanes), a));
    return __builtin_popcount(lanes);
}
// Sums of whole numbers: exact, so that they have no order.
struct Whole { __m512i low, high; };
inline Whole w_zero() { return {_mm512_setzero_si512(), _mm512_setzero_si512()}; }
// Adds every lane, rounded to a whole number, to one of `sum`; 0 <= a < 2^51.
inline Whole w_add(Whole sum, F a) {
    return {_mm512_add_epi64(sum.low, _mm512_cvtps_epi64(_mm512_castps512_ps256(a))),
            _mm512_add_epi64(sum.high, _mm512_cvtps_epi64(_mm512_extractf32x8_ps(a, 1)))};
}
inline int64_t w_total(Whole sum) {
    int64_t lanes[8];
    _mm512_storeu_si512(lanes, _mm512_add_epi64(sum.low, sum.high));
    int64_t total = 0;
    for (int64_t lane : lanes) total += lane;
    return total;
}
