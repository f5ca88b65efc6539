// Kernels for one instruction set: compiled with -DISA=name and the flags of the set.
#include "isa.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <immintrin.h>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "formats.h"
#include "packing.h"

namespace ISA {

#if SPECD_AVX512
#include "simd_avx512.h"
#else
#include "simd_avx2.h"
#endif
#include "math.inl"
#include "activations.inl"
#include "linear.inl"
#include "attention.inl"
#include "decoder.inl"
#include "noise.inl"
#include "selecting.inl"
#include "sampling.inl"

// Memory in cache lines of its own.
struct Arena {
    std::vector<std::unique_ptr<void, decltype(&std::free)>> parts;

    template <class T> T* take(int64_t count) {
        const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 127) / 64 * 64;
        void* memory = std::aligned_alloc(64, bytes);
        if (!memory) throw std::bad_alloc();
        parts.emplace_back(memory, &std::free);
        return static_cast<T*>(memory);
    }

    Activations activations(int needs, int64_t positions, int64_t columns) {
        Activations result;
        result.columns = columns;
        const int64_t size = positions * columns;
        if (needs & NEEDS_QUANTS) {
            result.quants = take<int8_t>(size);
            result.scales = take<float>(size / GROUP);
            result.sums32 = take<float>(size / GROUP);
            result.sums16 = take<float>(size / 16);
        }
        if (needs & NEEDS_BF16) result.bf16 = take<uint16_t>(size);
        if (needs & NEEDS_FP32) result.fp32 = take<float>(size);
        return result;
    }
};

struct Owned {
    Arena arena;
    Workspace work;
};

void* workspace(const Model& model, int64_t positions, int num_threads) {
    auto owned = std::make_unique<Owned>();
    Arena& arena = owned->arena;
    Workspace& work = owned->work;
    const int64_t queries = model.num_heads * model.head_dim;
    const int64_t narrow = queries > model.hidden ? queries : model.hidden;
    int needs = needs_of(model.head), needs_wide = 0;
    for (int64_t i = 0; i < model.num_layers; ++i) {
        const Layer& layer = model.layers[i];
        needs |= needs_of(layer.qkv) | needs_of(layer.attn_output) | needs_of(layer.gate) |
                 needs_of(layer.up);
        needs_wide |= needs_of(layer.down);
    }
    work.x = arena.take<float>(positions * model.hidden);
    work.normed = arena.take<float>(positions * narrow);
    work.fused = arena.take<float>(
        positions * (queries + 2 * model.num_kv_heads * model.head_dim));
    work.attended = arena.take<float>(positions * queries);
    work.turns = arena.take<float>(model.num_ropes * positions * model.head_dim);
    work.slots = arena.take<int64_t>(positions);
    work.texts = arena.take<int64_t>(positions);
    work.narrow = arena.activations(needs, positions, narrow);
    work.wide = arena.activations(needs_wide, positions, model.ffn);
    work.scratch = arena.take<Scratch>(num_threads);
    return owned.release();
}

void discard(void* work) { delete static_cast<Owned*>(work); }

void run_forward(Crew& crew, const Model& model, const Step& step, void* work) {
    forward(crew, model, step, static_cast<Owned*>(work)->work);
}

void run_linear(Pool& pool, const Linear& linear, const float* x, int64_t positions, float* out) {
    Arena arena;
    const int needs = needs_of(linear);
    const Activations to = arena.activations(needs, positions, linear.columns);
    int64_t rows = 0;
    for (int64_t i = 0; i < linear.num_parts; ++i) rows += linear.parts[i].rows;
    pool.run([&](Crew& crew) {
        crew.each(positions, [&](int64_t i) {
            set_position(to, needs, i, x + i * linear.columns);
        });
        multiply_into(crew, linear, to, positions, out, rows);
    });
}

bool run_examine(const float* row, int64_t vocab, int64_t* id, float* scratch) {
    const Top top = find_top<true>(row, vocab, scratch);
    *id = top.id;
    return top.finite;
}

void run_hashes(uint64_t seed, uint64_t position, int64_t count, uint32_t* out) {
    const Key key = key_of(seed, position);
    for (int64_t i = 0; i < count; i += LANES) {
        uint32_t words[LANES];
        i_store(words, hashes_of(key, i));
        for (int64_t lane = 0; lane < LANES && i + lane < count; ++lane) out[i + lane] = words[lane];
    }
}

void run_noise(const uint32_t* hashes, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = noise_of(hashes[i]);
}

}  // namespace ISA

#define CONCAT_(a, b) a##b
#define CONCAT(a, b) CONCAT_(a, b)
extern const Isa CONCAT(ISA_, ISA);
const Isa CONCAT(ISA_, ISA) = {
    ISA::run_forward, ISA::run_linear,  ISA::workspace, ISA::discard,    ISA::sample,
    ISA::write_scores, ISA::run_examine, ISA::measure,   ISA::run_hashes, ISA::run_noise,
};
