// A step of a decoder: all layers, then the logits that are asked for. Included once per
// instruction set. Every thread of a crew runs `forward`; behind each phase what stands above it is
// complete.

struct Workspace {
    float* x;         // [positions, hidden], the residual stream
    float* normed;    // [positions, max(hidden, query heads * head_dim)]
    float* fused;     // [positions, query, key and value heads * head_dim]
    float* attended;  // [positions, query heads * head_dim]
    float* turns;     // [ropes][positions][cos, sin][head_dim / 2]
    int64_t* slots;   // [positions], page * PAGE + token
    int64_t* texts;   // [positions], places in the text
    Activations narrow;  // what qkv, attn_output, gate, up and the head are given
    Activations wide;    // what down is given
    Scratch* scratch;    // [threads]
};

inline Activations shaped(const Activations& buffer, int64_t columns) {
    Activations result = buffer;
    result.columns = columns;
    return result;
}

inline void place(const Step& step, const Workspace& work) {
    for (int64_t r = 0; r < step.num_rows; ++r) {
        const Row& row = step.rows[r];
        for (int64_t i = 0; i < row.count; ++i) {
            const int64_t text = row.first + i;
            work.texts[row.offset + i] = text;
            work.slots[row.offset + i] = row.table[text / PAGE] * PAGE + text % PAGE;
        }
    }
}

inline void turn_angles(const Model& model, const Step& step, const Workspace& work, int64_t m) {
    const int64_t half = model.head_dim / 2;
    for (int64_t rope = 0; rope < model.num_ropes; ++rope) {
        float* turns = work.turns + (rope * step.num_positions + m) * model.head_dim;
        const double* frequency = model.inverse_frequencies + rope * half;
        for (int64_t i = 0; i < half; ++i) {
            const double angle = static_cast<double>(work.texts[m]) * frequency[i];
            turns[i] = static_cast<float>(std::cos(angle));
            turns[half + i] = static_cast<float>(std::sin(angle));
        }
    }
}

// Halves (i, i + half) of a head are turned by the position's angles.
inline void turn(float* head, const float* turns, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        const float a = head[i], b = head[half + i], cos = turns[i], sin = turns[half + i];
        head[i] = a * cos - b * sin;
        head[half + i] = b * cos + a * sin;
    }
}

inline void add_to(float* x, const float* y, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) f_store(x + i, f_add(f_load(x + i), f_load(y + i)));
}

template <class KV>
void write_position(const Model& model, const float* keys_values, int64_t slot, KV* layer) {
    const int64_t heads = model.num_kv_heads, dim = model.head_dim;
    KV* page = layer + slot / PAGE * (2 * heads * dim * PAGE);
    const int64_t token = slot % PAGE;
    alignas(64) KV lanes[LANES];
    for (int64_t h = 0; h < heads; ++h) {
        KV* keys = page + h * dim * PAGE + token;
        for (int64_t d = 0; d < dim; d += LANES) {
            kv_store(lanes, f_load(keys_values + h * dim + d));
            for (int64_t i = 0; i < LANES; ++i) keys[(d + i) * PAGE] = lanes[i];
        }
        KV* values = page + (heads + h) * dim * PAGE + token * dim;
        for (int64_t d = 0; d < dim; d += LANES) {
            kv_store(values + d, f_load(keys_values + (heads + h) * dim + d));
        }
    }
}

template <class KV>
void turn_and_write(const Model& model, const Layer& layer, const Step& step,
                    const Workspace& work, KV* cache, int64_t m) {
    const int64_t dim = model.head_dim, rotary = model.num_heads + model.num_kv_heads;
    float* fused = work.fused + m * (rotary + model.num_kv_heads) * dim;
    const float* turns = work.turns + (layer.rope * step.num_positions + m) * dim;
    for (int64_t h = 0; h < rotary; ++h) {
        const float* norm = h < model.num_heads ? layer.q_norm : layer.k_norm;
        if (norm) rms_norm(fused + h * dim, norm, model.norm_eps, dim, fused + h * dim);
        turn(fused + h * dim, turns, dim / 2);
    }
    write_position(model, fused + model.num_heads * dim, work.slots[m], cache);
}

// Tasks of attention: for each row and KV head, tiles of at most MAX_QUERIES queries.
struct AttentionPlan {
    int64_t heads_per_tile, tiles_per_group, positions_per_tile;
};

inline AttentionPlan attention_plan(const Model& model) {
    const int64_t group = model.num_heads / model.num_kv_heads;
    const int64_t heads = group < MAX_QUERIES ? group : MAX_QUERIES;
    return {heads, (group + heads - 1) / heads, MAX_QUERIES / heads};
}

inline int64_t tiles_of(const Row& row, const AttentionPlan& plan) {
    return (row.count + plan.positions_per_tile - 1) / plan.positions_per_tile;
}

template <class KV>
void attend_task(const Model& model, const Layer& layer, const Step& step, const Workspace& work,
                 const KV* cache, const AttentionPlan& plan, int64_t task, Scratch& scratch) {
    const Row* row = step.rows;
    const int64_t per_tile = model.num_kv_heads * plan.tiles_per_group;
    while (task >= tiles_of(*row, plan) * per_tile) {
        task -= tiles_of(*row, plan) * per_tile;
        ++row;
    }
    // The heads vary slowest, so that neighbouring tasks read the same pages; the last positions
    // of a prompt see the most and come first.
    const int64_t tiles = tiles_of(*row, plan);
    const int64_t tile = tiles - 1 - task % tiles, unit = task / tiles;
    const int64_t kv_head = unit / plan.tiles_per_group;
    const int64_t group = model.num_heads / model.num_kv_heads;
    const int64_t first_head = unit % plan.tiles_per_group * plan.heads_per_tile;
    const int64_t heads = group - first_head < plan.heads_per_tile ? group - first_head
                                                                  : plan.heads_per_tile;
    const int64_t first = tile * plan.positions_per_tile;
    const int64_t left = row->count - first;
    const int64_t count = left < plan.positions_per_tile ? left : plan.positions_per_tile;
    const int64_t dim = model.head_dim, all_heads = model.num_heads + 2 * model.num_kv_heads;
    const F scale = f_set1(static_cast<float>(model.attention_scale));
    Queries queries;
    queries.count = static_cast<int>(count * heads);
    queries.q = scratch.query;
    queries.out = scratch.query;
    for (int64_t i = 0; i < queries.count; ++i) {
        const int64_t m = row->offset + first + i / heads;
        const int64_t head = kv_head * group + first_head + i % heads;
        const float* q = work.fused + (m * all_heads + head) * dim;
        for (int64_t d = 0; d < dim; d += LANES) {
            f_store(scratch.query + i * dim + d, f_mul(f_load(q + d), scale));
        }
        const int64_t text = work.texts[m];
        queries.high[i] = text + 1;
        queries.low[i] = layer.window && text >= layer.window ? text + 1 - layer.window : 0;
    }
    const int64_t head_size = dim * PAGE;
    const Pages<KV> pages{cache, row->table, 2 * model.num_kv_heads * head_size,
                          kv_head * head_size, (model.num_kv_heads + kv_head) * head_size};
    attend(pages, dim, queries, scratch);
    for (int64_t i = 0; i < queries.count; ++i) {
        const int64_t m = row->offset + first + i / heads;
        const int64_t head = kv_head * group + first_head + i % heads;
        std::memcpy(work.attended + (m * model.num_heads + head) * dim, queries.out + i * dim,
                    dim * sizeof(float));
    }
}

template <class KV>
void attention(Crew& crew, const Model& model, const Layer& layer, const Step& step,
               const Workspace& work, KV* cache) {
    const int64_t m = step.num_positions;
    crew.each(m, [&](int64_t i) { turn_and_write(model, layer, step, work, cache, i); });
    const AttentionPlan plan = attention_plan(model);
    int64_t tasks = 0;
    for (int64_t r = 0; r < step.num_rows; ++r) {
        tasks += tiles_of(step.rows[r], plan) * model.num_kv_heads * plan.tiles_per_group;
    }
    crew.each(tasks, [&](int64_t task) {
        attend_task<KV>(model, layer, step, work, cache, plan, task, work.scratch[crew.thread]);
    });
}

// x += y, or x += norm(y) where the family has a norm behind each half of a layer.
inline void multiply_and_add(Crew& crew, const Model& model, const Linear& linear,
                             const float* post_norm, const Activations& from, int64_t positions,
                             const Workspace& work) {
    if (!post_norm) {
        multiply_onto(crew, linear, from, positions, work.x, model.hidden);
        return;
    }
    multiply_into(crew, linear, from, positions, work.normed, model.hidden);
    crew.each(positions, [&](int64_t i) {
        float* y = work.normed + i * model.hidden;
        rms_norm(y, post_norm, model.norm_eps, model.hidden, y);
        add_to(work.x + i * model.hidden, y, model.hidden);
    });
}

inline void norm_for(Crew& crew, const Model& model, const float* weight, int needs,
                     int64_t positions, const int64_t* index, const Workspace& work) {
    const Activations to = shaped(work.narrow, model.hidden);
    crew.each(positions, [&](int64_t i) {
        float* normed = work.normed + i * model.hidden;
        const float* x = work.x + (index ? index[i] : i) * model.hidden;
        rms_norm(x, weight, model.norm_eps, model.hidden, normed);
        set_position(to, needs, i, normed);
    });
}

template <class KV>
void run_layer(Crew& crew, const Model& model, const Layer& layer, const Step& step,
               const Workspace& work, KV* cache) {
    const int64_t m = step.num_positions;
    const int64_t queries = model.num_heads * model.head_dim;
    const int64_t all = queries + 2 * model.num_kv_heads * model.head_dim;
    norm_for(crew, model, layer.attn_norm, needs_of(layer.qkv), m, nullptr, work);
    multiply_into(crew, layer.qkv, shaped(work.narrow, model.hidden), m, work.fused, all);
    attention(crew, model, layer, step, work, cache);
    const Activations attended = shaped(work.narrow, queries);
    const int needs = needs_of(layer.attn_output);
    crew.each(m, [&](int64_t i) {
        set_position(attended, needs, i, work.attended + i * queries);
    });
    multiply_and_add(crew, model, layer.attn_output, layer.post_attn_norm, attended, m, work);
    norm_for(crew, model, layer.ffn_norm, needs_of(layer.gate) | needs_of(layer.up), m, nullptr,
             work);
    const Activations wide = shaped(work.wide, model.ffn);
    multiply_gated(crew, layer, model.activation, shaped(work.narrow, model.hidden), m, wide,
                   needs_of(layer.down));
    multiply_and_add(crew, model, layer.down, layer.post_ffn_norm, wide, m, work);
}

inline void embed(const Model& model, const Step& step, const Workspace& work, int64_t m) {
    float* x = work.x + m * model.hidden;
    unpack_row(static_cast<Format>(model.embedding.format), model.embedding.data, model.hidden,
               step.tokens[m], x);
    const float scale = static_cast<float>(model.embedding_scale);
    for (int64_t i = 0; i < model.hidden; ++i) x[i] *= scale;
    turn_angles(model, step, work, m);
}

template <class KV>
void forward_as(Crew& crew, const Model& model, const Step& step, const Workspace& work) {
    crew.each(1, [&](int64_t) { place(step, work); });
    crew.each(step.num_positions, [&](int64_t i) { embed(model, step, work, i); });
    const int64_t layer_size =
        step.num_pages * 2 * model.num_kv_heads * model.head_dim * PAGE;
    KV* cache = reinterpret_cast<KV*>(step.cache);
    for (int64_t i = 0; i < model.num_layers; ++i) {
        run_layer<KV>(crew, model, model.layers[i], step, work, cache + i * layer_size);
    }
    if (!step.num_wanted) return;
    norm_for(crew, model, model.final_norm, needs_of(model.head), step.num_wanted, step.wanted,
             work);
    multiply_into(crew, model.head, shaped(work.narrow, model.hidden), step.num_wanted,
                  step.logits, model.vocab);
}

inline void forward(Crew& crew, const Model& model, const Step& step, const Workspace& work) {
    if (model.kv_is_fp32) forward_as<float>(crew, model, step, work);
    else forward_as<uint16_t>(crew, model, step, work);
}
