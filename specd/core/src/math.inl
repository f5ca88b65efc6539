// exp and what is made of it, elementwise. Included once per instruction set.

// e^x for x <= 88; 0 below -87. Relative error about 1e-7 (Cody-Waite reduction, Taylor series).
inline F f_exp(F x) {
    F n = f_round(f_mul(f_max(f_set1(-88.0f), x), f_set1(1.44269504088896341f)));
    F r = f_fma(n, f_set1(-0.693359375f), x);
    r = f_fma(n, f_set1(2.12194440e-4f), r);
    F p = f_set1(1.0f / 5040);
    p = f_fma(p, r, f_set1(1.0f / 720));
    p = f_fma(p, r, f_set1(1.0f / 120));
    p = f_fma(p, r, f_set1(1.0f / 24));
    p = f_fma(p, r, f_set1(1.0f / 6));
    p = f_fma(p, r, f_set1(0.5f));
    p = f_fma(p, r, f_set1(1.0f));
    p = f_fma(p, r, f_set1(1.0f));
    return f_where_less(x, f_set1(-87.0f), f_zero(), f_scale_by_power(p, i_from_f(n)));
}

inline F f_logistic(F x) {  // 1 / (1 + e^-x)
    F e = f_exp(f_min(f_set1(88.0f), f_sub(f_zero(), x)));
    return f_div(f_set1(1.0f), f_add(f_set1(1.0f), e));
}

inline F f_activate(int64_t activation, F x) {
    if (activation == ACTIVATION_SILU) return f_mul(x, f_logistic(x));
    // gelu with tanh: x (1 + tanh u) / 2 = x / (1 + e^(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
    F cubic = f_fma(f_mul(f_mul(x, x), x), f_set1(0.044715f), x);
    return f_mul(x, f_logistic(f_mul(cubic, f_set1(1.5957691216057308f))));
}

// x [n] -> weight * x / rms(x); n is a multiple of 16.
inline void rms_norm(const float* x, const float* weight, double eps, int64_t n, float* out) {
    F squares = f_zero();
    for (int64_t i = 0; i < n; i += LANES) {
        F value = f_load(x + i);
        squares = f_fma(value, value, squares);
    }
    float mean = f_sum(squares) / static_cast<float>(n);
    F scale = f_set1(1.0f / std::sqrt(mean + static_cast<float>(eps)));
    for (int64_t i = 0; i < n; i += LANES) {
        f_store(out + i, f_mul(f_mul(f_load(x + i), scale), f_load(weight + i)));
    }
}
