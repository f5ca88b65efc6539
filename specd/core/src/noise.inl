// Keyed noise of tokens: exact integers, and logarithms in double precision. Included once per
// instruction set. The definition: docs/noise.md.
//
// Hashes are made for 16 tokens at a time. Noise itself is dear and needed for few: `noise_bound`
// says cheaply what it cannot exceed.

struct Key { uint32_t high, low; };

inline uint64_t finalise(uint64_t z) {  // SplitMix64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

inline Key key_of(uint64_t seed, uint64_t position) {
    const uint64_t key = finalise(finalise(seed) + position * 0x9E3779B97F4A7C15u);
    return {static_cast<uint32_t>(key >> 32), static_cast<uint32_t>(key)};
}

inline I mix(I x) {  // lowbias32
    x = i_mul32(i_xor(x, i_right32<16>(x)), i_set1(0x7FEB352D));
    x = i_mul32(i_xor(x, i_right32<15>(x)), i_set1(static_cast<int32_t>(0x846CA68Bu)));
    return i_xor(x, i_right32<16>(x));
}

// Of tokens first .. first + 16.
inline I hashes_of(Key key, int64_t first) {
    const I ids = i_add32(i_lanes(), i_set1(static_cast<int32_t>(first)));
    const I words = mix(i_xor(ids, i_set1(static_cast<int32_t>(key.high))));
    return mix(i_xor(words, i_set1(static_cast<int32_t>(key.low))));
}

// Natural logarithm of a normal x > 0; relative error 5e-16. From x = 2^n m with m between
// sqrt(1/2) and sqrt(2), log m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172.
inline double log_of(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const int64_t n = (bits - 0x3FE6A09E667F3BCD) >> 52;  // the bits of sqrt(1/2)
    bits -= n * (int64_t{1} << 52);
    double m;
    std::memcpy(&m, &bits, sizeof(m));
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 1.0 / 19;
    for (int k = 17; k > 1; k -= 2) p = p * z + 1.0 / k;
    return static_cast<double>(n) * 0.693147180559945309417232 + 2 * s * (1 + z * p);
}

// -log(-log(1 - u)) with u = (h + 1/2) / 2^32, rounded to fp32 and at most 1 - 2^-24; 1 - u is
// exact. The nearest fp32 of all 5e7 that were compared, so off by at most 9.5e-7: half a step of
// numbers above 16.
inline float noise_of(uint32_t h) {
    constexpr float BELOW_ONE = 1 - 0x1p-24f;
    const float u = static_cast<float>((h + 0.5) * 0x1p-32);
    const double rest = 1 - static_cast<double>(u < BELOW_ONE ? u : BELOW_ONE);
    return static_cast<float>(-log_of(-log_of(rest)));
}

// No noise is larger: that of h = 0, 33 log 2, with room for rounding.
constexpr float MOST_NOISE = 22.875f;

// At least the noise of h, but for 1e-4 that rounding takes. With y = floor(h / 2) <= 2^31 u:
// noise = -log(-log(1 - u)) <= -log u <= 31 log 2 - log y, since -log(1 - u) >= u. And log2 of y =
// 2^e (1 + f) is at least e + f, which is y's bits as a number, over 2^23, less 127. For y = 0 that
// gives -127, and a bound of 109.
inline F noise_bound(I h) {
    const F log2 = f_from_i(i_bits(f_from_i(i_right32<1>(h))));
    constexpr float LOG_2 = 0.6931472f;
    return f_fma(log2, f_set1(-LOG_2 / (1 << 23)), f_set1(LOG_2 * (127 + 31)));
}
