// The k-th largest of many floats, and the last token of a nucleus, without sorting. Included once
// per instruction set.
//
// Both are "the largest value v for which the values >= v weigh `target` together": each value
// weighs 1, or itself in whole units of 2^-42. Weights are whole numbers and their sums exact, so
// that the answer is a property of the set of values: no order, no pivot and no vector has a part
// in it.

constexpr int64_t FEW = 32;
constexpr float UNITS = 0x1p42f;

struct ByCount {
    static int64_t of(float) { return 1; }
    static int64_t sum(const float* list, int64_t count, float least) {
        const F bound = f_set1(least);
        int64_t sum = 0;
        for (int64_t i = 0; i < count; i += LANES) {
            sum += __builtin_popcount(f_at_least(f_load(list + i), bound));
        }
        return sum;
    }
};

inline Whole add_weights(Whole sum, F values) { return w_add(sum, f_mul(values, f_set1(UNITS))); }

struct ByValue {
    static int64_t of(float value) { return _mm_cvtss_si64(_mm_set_ss(value * UNITS)); }
    static int64_t sum(const float* list, int64_t count, float least) {
        const F bound = f_set1(least);
        Whole sum = w_zero();
        for (int64_t i = 0; i < count; i += LANES) {
            const F values = f_load(list + i);
            sum = add_weights(sum, f_where_less(values, bound, f_zero(), values));
        }
        return w_total(sum);
    }
};

struct Range { float low, high; };

// Whole vectors are read: what lies behind the list becomes its first value.
inline Range range_of(float* list, int64_t count) {
    f_store(list + count, f_set1(list[0]));
    F low = f_set1(list[0]), high = low;
    for (int64_t i = 0; i < count; i += LANES) {
        low = f_min(low, f_load(list + i));
        high = f_max(high, f_load(list + i));
    }
    return {0.0f - f_largest(f_sub(f_zero(), low)), f_largest(high)};  // the low is no -0
}

// Integers in the order of floats.
inline int32_t key_of_float(float x) {
    int32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits ^ (bits >> 31 & 0x7fffffff);
}

inline float float_of_key(int32_t key) {
    const int32_t bits = key ^ (key >> 31 & 0x7fffffff);
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

// A value above `low` and at most `high`, in the middle of the floats between: at most 32 halvings
// for any list. -0 comes before 0 here and equals it in comparisons, so `low` must not be it.
inline float between(Range range) {
    const int64_t low = key_of_float(range.low), high = key_of_float(range.high);
    return float_of_key(static_cast<int32_t>(low + (high - low + 1) / 2));
}

// Keeps the values >= bound, or those below it, side by side; returns how many.
inline int64_t keep(float* list, int64_t count, float bound, bool above) {
    int64_t kept = 0;
    const uint32_t turned = above ? 0 : 0xffff;
    for (int64_t i = 0; i < count; i += LANES) {
        const F values = f_load(list + i);
        uint32_t lanes = f_at_least(values, f_set1(bound)) ^ turned;
        if (count - i < LANES) lanes &= (1u << (count - i)) - 1;
        kept += f_store_where(list + kept, values, lanes);
    }
    return kept;
}

template <class Weight> float select_few(float* list, int64_t count, int64_t target) {
    for (int64_t i = 1; i < count; ++i) {
        const float value = list[i];
        int64_t place = i;
        for (; place && list[place - 1] < value; --place) list[place] = list[place - 1];
        list[place] = value;
    }
    int64_t at = 0;
    for (int64_t sum = Weight::of(list[0]); sum < target && at + 1 < count;) {
        sum += Weight::of(list[++at]);
    }
    return list[at];
}

// list: at least one value, and room for 16 more; destroyed. It weighs at least `target`, which is
// 1 or more.
template <class Weight> float select(float* list, int64_t count, int64_t target) {
    while (count > FEW) {
        const Range range = range_of(list, count);
        if (range.low == range.high) return range.low;
        const float middle = between(range);
        f_store(list + count, f_set1(range.low));  // weighs nothing beside `middle`
        const int64_t above = Weight::sum(list, count, middle);
        const bool is_above = above >= target;
        if (!is_above) target -= above;
        count = keep(list, count, middle, is_above);
    }
    return select_few<Weight>(list, count, target);
}
