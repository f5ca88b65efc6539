// Paged attention: queries of one row against the pages of its text. Included once per instruction
// set.
//
// A query sees positions low to high of its own text, both functions of its position alone. It is
// computed chunk by chunk (256 positions, counted from the text's beginning), each with its own
// maximum, and the chunks are folded in order. Sums over positions run by lanes of the position's
// number, and the values in order; so nothing but the query's own text decides a bit. Memory of
// positions that it does not see is never used, whatever is in it.

constexpr int64_t CHUNK = 256;
constexpr int MAX_QUERIES = 8;

inline F kv_load(const float* p) { return f_load(p); }
inline F kv_load(const uint16_t* p) { return f_from_half(p); }
inline void kv_store(float* p, F x) { f_store(p, x); }
inline void kv_store(uint16_t* p, F x) {
    // What no half holds becomes NaN: the request fails and is told, instead of going on wrongly.
    const F beyond = f_where_less(f_set1(65504.0f), f_abs(x), f_set1(NAN), f_zero());
    f_to_half(p, f_add(x, beyond));
}

// Queries of one row and one KV head. q: [count][head_dim], scaled. out: the same shape.
struct Queries {
    int count;
    const float* q;
    float* out;
    int64_t low[MAX_QUERIES], high[MAX_QUERIES];  // high is one behind the last
};

struct Scratch {  // of one thread
    float scores[MAX_QUERIES][CHUNK];
    float query[MAX_QUERIES * 512];
    float chunk[MAX_QUERIES * 512];
    float total[MAX_QUERIES * 512];
};

template <class KV> void prefetch_all(const KV* p, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(KV))) {
        _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T1);
    }
}

// keys [head_dim][PAGE] -> scores of PAGE tokens, CHUNK floats between queries. `next` is read soon:
// pages lie anywhere, so that the processor's own prefetching begins anew with each.
template <class KV, int COUNT>
void score(const float* q, int64_t dim, const KV* keys, const KV* next, float* scores) {
    F low[COUNT], high[COUNT];
    for (int i = 0; i < COUNT; ++i) low[i] = high[i] = f_zero();
    for (int64_t d = 0; d < dim; ++d) {
        prefetch_all(next + PAGE * d, PAGE);
        const F a = kv_load(keys + PAGE * d), b = kv_load(keys + PAGE * d + LANES);
#pragma GCC unroll 8
        for (int i = 0; i < COUNT; ++i) {
            const F x = f_set1(q[i * dim + d]);
            low[i] = f_fma(x, a, low[i]);
            high[i] = f_fma(x, b, high[i]);
        }
    }
    for (int i = 0; i < COUNT; ++i) {
        f_store(scores + CHUNK * i, low[i]);
        f_store(scores + CHUNK * i + LANES, high[i]);
    }
}

// sums [count][head_dim] += weights of tokens first to last of a page * values [token][head_dim].
template <class KV, int COUNT>
void weigh(const float* weights, int64_t dim, const KV* values, int64_t first, int64_t last,
           float* sums) {
    for (int64_t d = 0; d < dim; d += LANES) {
        F sum[COUNT];
        for (int i = 0; i < COUNT; ++i) sum[i] = f_load(sums + i * dim + d);
        for (int64_t token = first; token < last; ++token) {
            const F value = kv_load(values + token * dim + d);
#pragma GCC unroll 8
            for (int i = 0; i < COUNT; ++i) {
                sum[i] = f_fma(value, f_set1(weights[CHUNK * i + token]), sum[i]);
            }
        }
        for (int i = 0; i < COUNT; ++i) f_store(sums + i * dim + d, sum[i]);
    }
}

template <class KV> struct AttentionTiles {
    static constexpr void (*score[MAX_QUERIES])(const float*, int64_t, const KV*, const KV*,
                                                float*) = {
        ISA::score<KV, 1>, ISA::score<KV, 2>, ISA::score<KV, 3>, ISA::score<KV, 4>,
        ISA::score<KV, 5>, ISA::score<KV, 6>, ISA::score<KV, 7>, ISA::score<KV, 8>};
    static constexpr void (*weigh[MAX_QUERIES])(const float*, int64_t, const KV*, int64_t, int64_t,
                                                float*) = {
        ISA::weigh<KV, 1>, ISA::weigh<KV, 2>, ISA::weigh<KV, 3>, ISA::weigh<KV, 4>,
        ISA::weigh<KV, 5>, ISA::weigh<KV, 6>, ISA::weigh<KV, 7>, ISA::weigh<KV, 8>};
};

// The pages of one KV head of one layer.
template <class KV> struct Pages {
    const KV* layer;
    const int64_t* table;
    int64_t page_size;  // elements, K and V of all heads
    int64_t key_offset, value_offset;

    const KV* keys(int64_t page) const { return layer + table[page] * page_size + key_offset; }
    const KV* values(int64_t page) const { return layer + table[page] * page_size + value_offset; }
};

// scores[low, high) -> e^(score - largest), 0 in the other lanes of their vectors; their sum.
inline float softmax_chunk(float* scores, int64_t low, int64_t high, float& largest) {
    const F nothing = f_set1(-INFINITY);
    F most = nothing;
    const int64_t start = low / LANES * LANES;
    for (int64_t j = start; j < high; j += LANES) {
        F value = f_load(scores + j);
        if (j + LANES > high) value = f_first(high - j, value, nothing);
        if (j < low) value = f_first(low - j, nothing, value);
        f_store(scores + j, value);
        most = f_max(most, value);
    }
    largest = f_largest(most);
    F sum = f_zero();
    for (int64_t j = start; j < high; j += LANES) {
        F value = f_exp(f_sub(f_load(scores + j), f_set1(largest)));
        f_store(scores + j, value);
        sum = f_add(sum, value);
    }
    return f_sum(sum);
}

template <class KV>
void weigh_range(const Pages<KV>& pages, int64_t dim, int64_t chunk, int64_t first, int64_t last,
                 int count, const float* weights, float* sums) {
    for (int64_t j = first; j < last;) {
        const int64_t page = (chunk + j) / PAGE, base = page * PAGE - chunk;
        const int64_t end = base + PAGE < last ? base + PAGE : last;
        AttentionTiles<KV>::weigh[count - 1](weights + base, dim, pages.values(page), j - base,
                                             end - base, sums);
        j = end;
    }
}

template <class KV>
void attend(const Pages<KV>& pages, int64_t dim, const Queries& queries, Scratch& scratch) {
    const int count = queries.count;
    float largest[MAX_QUERIES], mass[MAX_QUERIES];
    bool begun[MAX_QUERIES] = {};
    int64_t low = queries.low[0], high = queries.high[0];
    for (int i = 1; i < count; ++i) {
        low = queries.low[i] < low ? queries.low[i] : low;
        high = queries.high[i] > high ? queries.high[i] : high;
    }
    for (int64_t chunk = low / CHUNK * CHUNK; chunk < high; chunk += CHUNK) {
        const int64_t end = chunk + CHUNK < high ? chunk + CHUNK : high;
        const int64_t begin = chunk > low ? chunk : low;
        for (int64_t page = begin / PAGE; page * PAGE < end; ++page) {
            const int64_t next = (page + 1) * PAGE < high ? page + 1 : page;
            AttentionTiles<KV>::score[count - 1](queries.q, dim, pages.keys(page),
                                                 pages.keys(next),
                                                 scratch.scores[0] + page * PAGE - chunk);
            prefetch_all(pages.values(page), dim * PAGE);
        }
        int64_t from[MAX_QUERIES], to[MAX_QUERIES], common_from = 0, common_to = CHUNK;
        float chunk_largest[MAX_QUERIES], chunk_mass[MAX_QUERIES];
        for (int i = 0; i < count; ++i) {
            from[i] = (queries.low[i] > chunk ? queries.low[i] : chunk) - chunk;
            to[i] = (queries.high[i] < end ? queries.high[i] : end) - chunk;
            common_from = from[i] > common_from ? from[i] : common_from;
            common_to = to[i] < common_to ? to[i] : common_to;
            if (from[i] >= to[i]) continue;
            chunk_mass[i] = softmax_chunk(scratch.scores[i], from[i], to[i], chunk_largest[i]);
        }
        for (int64_t d = 0; d < count * dim; d += LANES) f_store(scratch.chunk + d, f_zero());
        const bool shared = common_from < common_to;
        for (int i = 0; i < count; ++i) {
            weigh_range(pages, dim, chunk, from[i], shared ? common_from : to[i], 1,
                        scratch.scores[i], scratch.chunk + i * dim);
        }
        if (shared) {
            weigh_range(pages, dim, chunk, common_from, common_to, count, scratch.scores[0],
                        scratch.chunk);
            for (int i = 0; i < count; ++i) {
                weigh_range(pages, dim, chunk, common_to, to[i], 1, scratch.scores[i],
                            scratch.chunk + i * dim);
            }
        }
        for (int i = 0; i < count; ++i) {
            if (from[i] >= to[i]) continue;
            float* total = scratch.total + i * dim;
            const float* part = scratch.chunk + i * dim;
            if (!begun[i]) {
                begun[i] = true;
                largest[i] = chunk_largest[i];
                mass[i] = chunk_mass[i];
                std::memcpy(total, part, dim * sizeof(float));
                continue;
            }
            const float most = largest[i] > chunk_largest[i] ? largest[i] : chunk_largest[i];
            alignas(64) float keep[LANES];
            f_store(keep, f_exp(f_first(1, f_set1(largest[i] - most),
                                        f_set1(chunk_largest[i] - most))));
            const F old = f_set1(keep[0]), fresh = f_set1(keep[1]);
            for (int64_t d = 0; d < dim; d += LANES) {
                f_store(total + d, f_fma(f_load(total + d), old, f_mul(f_load(part + d), fresh)));
            }
            mass[i] = std::fma(mass[i], keep[0], chunk_mass[i] * keep[1]);
            largest[i] = most;
        }
    }
    for (int i = 0; i < count; ++i) {
        const F inverse = f_set1(1.0f / mass[i]);
        for (int64_t d = 0; d < dim; d += LANES) {
            f_store(queries.out + i * dim + d, f_mul(f_load(scratch.total + i * dim + d), inverse));
        }
    }
}
