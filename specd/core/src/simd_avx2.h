// 16 lanes as two halves of 8 on AVX2 with FMA and F16C. See simd_avx512.h for what each does.

constexpr bool WIDE_REGISTERS = false;

struct F { __m256 a, b; };
struct I { __m256i a, b; };

inline F f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F f_set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void f_store(float* p, F x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
inline F f_add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F f_sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F f_mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F f_div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F f_fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F f_max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F f_min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F f_abs(F x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F f_round(F x) { return {_mm256_round_ps(x.a, 0), _mm256_round_ps(x.b, 0)}; }
inline F f_from_i(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline I i_from_f(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline F f_first(int64_t count, F x, F y) {
    __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i n = _mm256_set1_epi32(static_cast<int>(count));
    __m256i low = _mm256_cmpgt_epi32(n, lanes);
    __m256i high = _mm256_cmpgt_epi32(n, _mm256_add_epi32(lanes, _mm256_set1_epi32(8)));
    return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(low)),
            _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(high))};
}
inline F f_where_less(F x, F y, F a, F b) {
    return {_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
            _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ))};
}
inline F f_scale_by_power(F x, I n) {
    return {_mm256_castsi256_ps(
                _mm256_add_epi32(_mm256_castps_si256(x.a), _mm256_slli_epi32(n.a, 23))),
            _mm256_castsi256_ps(
                _mm256_add_epi32(_mm256_castps_si256(x.b), _mm256_slli_epi32(n.b, 23)))};
}
inline __m128i load128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline F f_from_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 8))};
}
inline void f_to_half(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, 0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, 0));
}
inline F f_from_u8(const uint8_t* p) {
    __m128i bytes = load128(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline F f_from_i8(const uint8_t* p) {
    __m128i bytes = load128(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
inline float f_sum(F x) {
    __m256 a = _mm256_add_ps(x.a, x.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
inline float f_largest(F x) {
    __m256 a = _mm256_max_ps(x.a, x.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

inline I i_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline I i_load(const void* p) {
    const __m256i* v = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
inline I i_set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I i_set1_u8(uint8_t x) {
    __m256i v = _mm256_set1_epi8(static_cast<char>(x));
    return {v, v};
}
inline I i_and(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
inline I i_or(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int BITS> inline I i_right(I x) {
    return {_mm256_srli_epi16(x.a, BITS), _mm256_srli_epi16(x.b, BITS)};
}
template <int BITS> inline I i_left(I x) {
    return {_mm256_slli_epi16(x.a, BITS), _mm256_slli_epi16(x.b, BITS)};
}
inline __m256i bytes_where(const uint8_t* p, __m256i value) {  // 32 bits -> 32 bytes
    int32_t bits;
    std::memcpy(&bits, p, 4);
    __m256i spread = _mm256_shuffle_epi8(
        _mm256_set1_epi32(bits),
        _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
    __m256i one = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, one), one), value);
}
inline I i_add_where(I x, const uint8_t* p, I y) {
    return {_mm256_add_epi8(x.a, bytes_where(p, y.a)), _mm256_add_epi8(x.b, bytes_where(p + 4, y.b))};
}
inline __m256i dot8(__m256i sum, __m256i a, __m256i b) {
    // Pairs fit 16 bits while the unsigned bytes are below 128.
    __m256i pairs = _mm256_maddubs_epi16(a, b);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline I i_dot(I sum, I x, I y) { return {dot8(sum.a, x.a, y.a), dot8(sum.b, x.b, y.b)}; }
inline __m256i dot8_wide(__m256i sum, __m256i a, __m256i b) {
    __m256i even = _mm256_set1_epi16(0xff);  // unsigned bytes 0 and 2 of each lane, then 1 and 3
    __m256i first = _mm256_madd_epi16(_mm256_and_si256(a, even),
                                      _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    __m256i second = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
    return _mm256_add_epi32(sum, _mm256_add_epi32(first, second));
}
inline I i_dot_wide(I sum, I x, I y) {
    return {dot8_wide(sum.a, x.a, y.a), dot8_wide(sum.b, x.b, y.b)};
}
inline void i_store_i8(int8_t* p, I x) {
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
inline int32_t i_sum(I x) {
    __m256i a = _mm256_add_epi32(x.a, x.b);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1)));
}
inline __m128i bf16_of(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan);
    __m256i words = _mm256_packus_epi32(_mm256_srli_epi32(rounded, 16), _mm256_setzero_si256());
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0xd8));
}
inline void f_to_bf16(uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bf16_of(x.a));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), bf16_of(x.b));
}
inline F f_low_bf16(I w) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(w.a, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(w.b, 16))};
}
inline F f_high_bf16(I w) {
    __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(w.a, high)),
            _mm256_castsi256_ps(_mm256_and_si256(w.b, high))};
}

// --- What sampling needs ---

inline I i_add32(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I i_xor(I x, I y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline I i_mul32(I x, I y) {
    return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)};
}
template <int BITS> inline I i_right32(I x) {
    return {_mm256_srli_epi32(x.a, BITS), _mm256_srli_epi32(x.b, BITS)};
}
inline I i_lanes() {
    return {_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15)};
}
inline I i_bits(F x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline void i_store(void* p, I x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.b);
}
inline uint32_t f_at_least(F x, F y) {
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_GE_OQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_GE_OQ));
    return static_cast<uint32_t>(low | high << 8);
}
inline F f_keep_nan(F x, F y) {
    return {_mm256_blendv_ps(x.a, y.a, _mm256_cmp_ps(y.a, y.a, _CMP_UNORD_Q)),
            _mm256_blendv_ps(x.b, y.b, _mm256_cmp_ps(y.b, y.b, _CMP_UNORD_Q))};
}
struct Orders { uint8_t lanes[256][8]; };  // for 8 bits: the lanes that are set, in front
constexpr Orders orders() {
    Orders made{};
    for (int bits = 0; bits < 256; ++bits) {
        int count = 0;
        for (uint8_t lane = 0; lane < 8; ++lane) {
            if (bits >> lane & 1) made.lanes[bits][count++] = lane;
        }
    }
    return made;
}
inline int store_where8(float* p, __m256 x, uint32_t lanes) {
    static constexpr Orders ORDERS = orders();
    const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(ORDERS.lanes[lanes]));
    _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(x, _mm256_cvtepu8_epi32(order)));
    return __builtin_popcount(lanes);
}
inline int64_t f_store_where(float* p, F x, uint32_t lanes) {
    const int count = store_where8(p, x.a, lanes & 0xff);
    return count + store_where8(p + count, x.b, lanes >> 8);
}
struct Whole { __m256i parts[4]; };
inline Whole w_zero() {
    const __m256i zero = _mm256_setzero_si256();
    return {{zero, zero, zero, zero}};
}
inline __m256i w_add4(__m256i sum, __m128 x) {
    const __m256d magic = _mm256_set1_pd(4503599627370496.0);  // 2^52: fractions are rounded away
    const __m256d rounded = _mm256_add_pd(_mm256_cvtps_pd(x), magic);
    return _mm256_add_epi64(sum, _mm256_castpd_si256(_mm256_xor_pd(rounded, magic)));
}
inline Whole w_add(Whole sum, F x) {
    return {{w_add4(sum.parts[0], _mm256_castps256_ps128(x.a)),
             w_add4(sum.parts[1], _mm256_extractf128_ps(x.a, 1)),
             w_add4(sum.parts[2], _mm256_castps256_ps128(x.b)),
             w_add4(sum.parts[3], _mm256_extractf128_ps(x.b, 1))}};
}
inline int64_t w_total(Whole sum) {
    const __m256i all = _mm256_add_epi64(_mm256_add_epi64(sum.parts[0], sum.parts[1]),
                                         _mm256_add_epi64(sum.parts[2], sum.parts[3]));
    int64_t lanes[4];
    std::memcpy(lanes, &all, sizeof(lanes));
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}
