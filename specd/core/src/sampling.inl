// The token of a draw: which tokens are kept, and who of them has the largest score + noise.
// Included once per instruction set.
//
// score = (logit - largest) / temperature in fp32, e^score is its weight. Passes over the row first
// compare a cheap bound of 16 scores with a gate; scores, weights and noise are computed exactly,
// and the same everywhere, for the few that get through. A gate only ever leaves out what could
// not be chosen.

constexpr int64_t BLOCK = 16 * LANES;
constexpr float NONE = -std::numeric_limits<float>::infinity();
constexpr float LOWEST = -std::numeric_limits<float>::max();
// A weight below 2^-43 is no unit, and so is the weight of no score below this.
constexpr float LEAST_SCORE = -30.0f;

inline float larger(float a, float b) { return a > b ? a : b; }

// Logits i .. i + 16 of a row of n; behind its end -infinity.
inline F load_row(const float* row, int64_t i, int64_t n) {
    if (i + LANES <= n) return f_load(row + i);
    alignas(64) float lanes[LANES];
    for (float& lane : lanes) lane = NONE;
    std::memcpy(lanes, row + i, (n - i) * sizeof(float));
    return f_load(lanes);
}

struct Top {
    float value;
    int64_t id;  // the lowest that has it
    bool finite;  // and no value is a NaN
};

// Also writes the largest of each 16 values that lie 16 apart, at most n + 16 of them.
template <bool CHECKED> Top find_top(const float* row, int64_t n, float* maxima) {
    F most = f_set1(NONE), nan = f_zero();
    for (int64_t first = 0, block = 0; first < n; first += BLOCK, block += LANES) {
        const int64_t last = first + BLOCK < n ? first + BLOCK : n;
        F in_block = f_set1(NONE);
        for (int64_t i = first; i < last; i += LANES) {
            const F values = load_row(row, i, n);
            in_block = f_max(values, in_block);
            if (CHECKED) nan = f_keep_nan(nan, values);
        }
        f_store(maxima + block, in_block);
        most = f_max(most, in_block);
    }
    alignas(64) float lanes[LANES];
    f_store(lanes, most);
    Top top{lanes[0], 0, true};
    for (float lane : lanes) top.value = larger(lane, top.value);
    if (CHECKED) top.finite = std::isfinite(top.value) && !std::isnan(f_sum(nan));
    if (CHECKED && !top.finite) return top;
    const F value = f_set1(top.value);
    int64_t i = 0;
    while (i * LANES < n && !f_at_least(f_load(maxima + i), value)) i += LANES;
    for (i *= LANES; i < n; i += LANES) {  // a maximum stands for 16 values
        const uint32_t equal = f_at_least(load_row(row, i, n), value);
        if (equal) {
            top.id = i + __builtin_ctz(equal);
            break;
        }
    }
    return top;
}

// What is kept: scores of at least `floor` with weights of at least `weight`.
struct Cut {
    float largest, temperature;
    float inverse;  // at most 1 / temperature
    float floor, weight;

    explicit Cut(float largest, float temperature = 1)
        : largest(largest), temperature(temperature),
          inverse(std::nextafter(1 / temperature, 0.0f)), floor(NONE), weight(0) {}

    F scores(F logits) const {
        return f_div(f_sub(logits, f_set1(largest)), f_set1(temperature));
    }
    // No score is above its bound: differences are 0 or less, and rounding keeps the order of
    // d / temperature <= d * inverse.
    F bounds(F logits) const {
        return f_mul(f_sub(logits, f_set1(largest)), f_set1(inverse));
    }
    uint32_t kept(F scores) const {
        const uint32_t lanes = f_at_least(scores, f_set1(floor));
        return weight > 0 && lanes ? lanes & f_at_least(f_exp(scores), f_set1(weight)) : lanes;
    }
    // No kept score is below. Off by 1e-4 for the rounding of f_exp and of this logarithm.
    float gate() const {
        const float least = weight > 0 ? static_cast<float>(log_of(weight)) - 1e-4f : NONE;
        return least > floor ? least : floor;
    }
};

// Calls each(i, logits) for the vectors of a row that have a bound of at least `gate`.
template <class Each>
inline void each_above(const float* row, int64_t n, const Cut& cut, const float& gate, Each each) {
    for (int64_t i = 0; i < n; i += LANES) {
        const F logits = load_row(row, i, n);
        if (f_at_least(cut.bounds(logits), f_set1(gate))) each(i, logits);
    }
}

// The k-th largest logit; -infinity if fewer are possible. list: the maxima of `find_top`, then
// scratch.
inline float kth_logit(const float* row, int64_t n, int64_t k, float* list) {
    const int64_t num_maxima = (n + BLOCK - 1) / BLOCK * LANES;
    float bound = LOWEST;
    // The k-th largest maximum has k logits at or above it.
    if (k <= num_maxima) bound = larger(bound, select<ByCount>(list, num_maxima, k));
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        const F logits = load_row(row, i, n);
        const uint32_t lanes = f_at_least(logits, f_set1(bound));
        if (lanes) count += f_store_where(list + count, logits, lanes);
    }
    return count < k ? NONE : select<ByCount>(list, count, k);
}

// Weights of the scores that a cut's floor keeps, 0 for the others.
inline F weights_of(const Cut& cut, F logits) {
    const F scores = cut.scores(logits);
    return f_where_less(scores, f_set1(cut.floor), f_zero(), f_exp(scores));
}

// The units that a nucleus has at least, of `total`.
inline int64_t share_of(double top_p, int64_t total) {
    const int64_t share = static_cast<int64_t>(std::ceil(top_p * static_cast<double>(total)));
    return share < 1 ? 1 : share < total ? share : total;
}

// A weight below which no token is the last of a nucleus, once n tokens weigh `total` or more: all
// of them together weigh less than what the nucleus leaves. 1024 units are for rounding in fp64.
inline float least_weight(double top_p, int64_t total, int64_t n) {
    const int64_t spare = (total - share_of(top_p, total) - 1024) / n;
    return larger(static_cast<float>(spare) / UNITS * (1 - 0x1p-22f), 0x1p-43f);
}

// The weight of the last token of the smallest sorted prefix that has a share top_p of the weight
// of all that `cut` keeps. One pass sums and lists, with a bound that rises with the sum.
inline float nucleus_weight(const Draw& draw, int64_t n, const Cut& cut, float* list) {
    constexpr int64_t OFTEN = 32;
    Whole sum = w_zero();
    int64_t count = 0, steps = 0;
    float least = 0x1p-43f;
    each_above(draw.logits, n, cut, larger(cut.floor, LEAST_SCORE), [&](int64_t, F logits) {
        const F weights = weights_of(cut, logits);
        sum = add_weights(sum, weights);
        const uint32_t lanes = f_at_least(weights, f_set1(least));
        if (lanes) count += f_store_where(list + count, weights, lanes);
        if (++steps % OFTEN == 0) least = least_weight(draw.top_p, w_total(sum), n);
    });
    const int64_t total = w_total(sum);
    count = keep(list, count, least_weight(draw.top_p, total, n), true);
    return select<ByValue>(list, count, share_of(draw.top_p, total));
}

// list: the maxima of `find_top`, then scratch.
inline Cut cut_of(const Draw& draw, int64_t n, float largest, float* list) {
    Cut cut(largest, draw.temperature);
    if (0 < draw.top_k && draw.top_k < n) {
        cut.floor = (kth_logit(draw.logits, n, draw.top_k, list) - largest) / cut.temperature;
    }
    if (draw.top_p < 1) cut.weight = nucleus_weight(draw, n, cut, list);
    cut.floor = larger(cut.floor, draw.least_score);
    return cut;
}

struct Winner {
    int64_t id;
    float value;

    void meet(int64_t other, float its) {
        if (its > value || (its == value && other < id)) *this = {other, its};
    }
};

// The largest score + noise. `top` scores 0 and is kept; whoever cannot reach what the best so far
// has, even with the most noise or with the bound of its own, is left out.
inline int64_t find_winner(const Draw& draw, int64_t n, const Cut& cut, int64_t top) {
    constexpr float ROOM = 0x1p-10f;  // for roundings: scores that matter are within 26 of 0
    const Key key = key_of(draw.seed, draw.position);
    alignas(64) uint32_t words[LANES];
    i_store(words, hashes_of(key, top));
    Winner best{top, 0.0f + noise_of(words[0])};
    const float kept = cut.gate();
    float gate = larger(kept, best.value - MOST_NOISE - ROOM);
    each_above(draw.logits, n, cut, gate, [&](int64_t first, F logits) {
        const I hashes = hashes_of(key, first);
        const F most = f_add(cut.bounds(logits), noise_bound(hashes));
        uint32_t lanes = f_at_least(most, f_set1(best.value - ROOM));
        if (!lanes) return;
        const F scores = cut.scores(logits);
        lanes &= cut.kept(scores);
        alignas(64) float values[LANES];
        f_store(values, scores);
        i_store(words, hashes);
        for (; lanes; lanes &= lanes - 1) {
            const int lane = __builtin_ctz(lanes);
            best.meet(first + lane, values[lane] + noise_of(words[lane]));
        }
        gate = larger(kept, best.value - MOST_NOISE - ROOM);
    });
    return best.id;
}

inline int64_t sample(const Draw& draw, int64_t n, float* scratch) {
    const Top top = find_top<false>(draw.logits, n, scratch);
    if (!(draw.temperature > 0)) return top.id;
    return find_winner(draw, n, cut_of(draw, n, top.value, scratch), top.id);
}

inline void write_scores(const Draw& draw, int64_t n, float* out, float* scratch) {
    const float largest = find_top<false>(draw.logits, n, scratch).value;
    const bool greedy = !(draw.temperature > 0);
    const Cut cut = greedy ? Cut(largest) : cut_of(draw, n, largest, scratch);
    for (int64_t i = 0; i < n; i += LANES) {
        alignas(64) float scores[LANES];
        f_store(scores, cut.scores(load_row(draw.logits, i, n)));
        const uint32_t kept = cut.kept(f_load(scores));
        for (int64_t lane = 0; lane < LANES && i + lane < n; ++lane) {
            out[i + lane] = kept >> lane & 1 ? scores[lane] : NONE;
        }
    }
}

// Fills the best tokens in, with logits for log probabilities. list: as `kth_logit`.
inline void find_best(Standing& standing, int64_t n, float* list) {
    const int64_t wanted = standing.num_best < n ? standing.num_best : n;
    int64_t& found = standing.num_best = 0;
    if (wanted < 1) return;
    const F least = f_set1(larger(LOWEST, kth_logit(standing.logits, n, wanted, list)));
    for (int64_t i = 0; i < n; i += LANES) {
        uint32_t lanes = f_at_least(load_row(standing.logits, i, n), least);
        for (; lanes; lanes &= lanes - 1) {
            const int64_t id = i + __builtin_ctz(lanes);
            const float logit = standing.logits[id];
            if (found == wanted && standing.best_logprobs[found - 1] >= logit) continue;
            int64_t place = found < wanted ? found++ : found - 1;
            for (; place && standing.best_logprobs[place - 1] < logit; --place) {
                standing.best[place] = standing.best[place - 1];
                standing.best_logprobs[place] = standing.best_logprobs[place - 1];
            }
            standing.best[place] = id;
            standing.best_logprobs[place] = logit;
        }
    }
}

// The sum of e^x has no order here either.
inline void measure(Standing& standing, int64_t n, float* scratch) {
    const float* row = standing.logits;
    const float own = row[standing.token];
    const Cut cut(find_top<false>(row, n, scratch).value);
    find_best(standing, n, scratch);
    Whole units = w_zero();
    each_above(row, n, cut, LEAST_SCORE, [&](int64_t, F logits) {
        units = add_weights(units, weights_of(cut, logits));
    });
    const double log_sum = cut.largest + log_of(static_cast<double>(w_total(units)) / UNITS);
    standing.logprob = static_cast<float>(own - log_sum);
    for (int64_t i = 0; i < standing.num_best; ++i) {
        float& value = standing.best_logprobs[i];
        value = static_cast<float>(value - log_sum);
    }
    int64_t no_larger = 0;
    for (int64_t i = 0; i < n; i += LANES) {
        no_larger += __builtin_popcount(f_at_least(f_set1(own), load_row(row, i, n)));
    }
    standing.rank = 1 + (n + LANES - 1) / LANES * LANES - no_larger;
}
