// The C interface: see core.h.
#include "core.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

#include "isa.h"
#include "packing.h"

static_assert(sizeof(Part) == 24 && sizeof(Linear) == 32 && sizeof(Row) == 32);
static_assert(sizeof(Draw) == 48 && sizeof(Standing) == 56);

namespace {

constexpr const Isa* ISAS[] = {&ISA_AVX2, &ISA_AVX512, &ISA_AVX512_BF16};

}  // namespace

struct Core {
    const Model* model;
    const Isa* isa;
    Pool pool;
    void* work;

    Core(const Model* model, int64_t positions, int num_threads, const Isa* isa)
        : model(model), isa(isa), pool(num_threads),
          work(isa->workspace(*model, positions, num_threads)) {}
    ~Core() { isa->discard(work); }
};

// Each thread has memory of its own: a row's is where its thread is.
struct Sampler {
    const Isa* isa;
    const int64_t vocab, size;
    std::unique_ptr<Pool> own;
    Pool& pool;
    std::unique_ptr<float[]> memory;

    Sampler(Core* core, int64_t vocab, int num_threads, const Isa* isa)
        : isa(isa), vocab(vocab), size(vocab + 4 * LANES),
          own(core ? nullptr : new Pool(num_threads)), pool(core ? core->pool : *own),
          memory(new float[size * pool.num_threads()]) {}

    // task(i, scratch) for each i below count. Others are only woken up for work of 0.1 ms.
    template <class Task> void each(int64_t count, Task task) {
        if (count * vocab < WORTHWHILE) {
            for (int64_t i = 0; i < count; ++i) task(i, memory.get());
            return;
        }
        pool.run([&](Crew& crew) {
            float* scratch = memory.get() + crew.thread * size;
            crew.each(count, [&](int64_t i) { task(i, scratch); });
        });
    }

    static constexpr int64_t WORTHWHILE = 1 << 19;
};

extern "C" {

int32_t specd_abi_version() { return ABI_VERSION; }

int32_t specd_supports(int32_t isa) {
    __builtin_cpu_init();
    switch (isa) {
        case 0:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   __builtin_cpu_supports("f16c");
        case 1:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512vnni") && specd_supports(0);
        case 2: return specd_supports(1) && __builtin_cpu_supports("avx512bf16");
        default: return 0;
    }
}

Core* specd_create(const Model* model, int64_t max_positions, int32_t num_threads, int32_t isa) {
    try {
        return new Core(model, max_positions, num_threads, ISAS[isa]);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void specd_destroy(Core* core) { delete core; }

void specd_run(Core* core, const Step* step) {
    core->pool.run([&](Crew& crew) {
        core->isa->forward(crew, *core->model, *step, core->work);
    });
}

void specd_linear(const Linear* linear, const float* activations, int64_t positions, float* out,
                  int32_t num_threads, int32_t isa) {
    Pool pool(num_threads);
    ISAS[isa]->multiply(pool, *linear, activations, positions, out);
}

Sampler* specd_sampler_create(Core* core, int64_t vocab, int32_t num_threads, int32_t isa) {
    if (vocab < 1 || vocab > MAX_VOCAB) return nullptr;
    try {
        return new Sampler(core, vocab, num_threads, ISAS[isa]);
    } catch (const std::exception&) {
        return nullptr;
    }
}

void specd_sampler_destroy(Sampler* sampler) { delete sampler; }

void specd_sample(Sampler* sampler, const Draw* draws, int64_t count, int64_t* tokens) {
    sampler->each(count, [&](int64_t i, float* scratch) {
        tokens[i] = sampler->isa->sample(draws[i], sampler->vocab, scratch);
    });
}

void specd_scores(Sampler* sampler, const Draw* draw, float* scores) {
    sampler->isa->scores(*draw, sampler->vocab, scores, sampler->memory.get());
}

void specd_examine(Sampler* sampler, const float* rows, int64_t count, int64_t* ids,
                   uint8_t* finite) {
    sampler->each(count, [&](int64_t i, float* scratch) {
        const float* row = rows + i * sampler->vocab;
        finite[i] = sampler->isa->examine(row, sampler->vocab, ids + i, scratch);
    });
}

void specd_measure(Sampler* sampler, Standing* standings, int64_t count) {
    sampler->each(count, [&](int64_t i, float* scratch) {
        sampler->isa->measure(standings[i], sampler->vocab, scratch);
    });
}

void specd_hashes(uint64_t seed, uint64_t position, int64_t count, uint32_t* hashes, int32_t isa) {
    ISAS[isa]->hashes(seed, position, count, hashes);
}

void specd_noise(const uint32_t* hashes, int64_t count, float* noise, int32_t isa) {
    ISAS[isa]->noise(hashes, count, noise);
}

int64_t specd_read(const uint8_t* const* regions, const int64_t* bytes, int64_t count,
                   int32_t num_threads) {
    constexpr int64_t PIECE = 1 << 18;
    std::atomic<int64_t> total{0};
    Pool pool(num_threads);
    pool.run([&](Crew& crew) {
        int64_t sum = 0;
        for (int64_t region = 0; region < count; ++region) {
            crew.phase((bytes[region] + PIECE - 1) / PIECE, 1, [&](int64_t first, int64_t last) {
                const int64_t end = last * PIECE < bytes[region] ? last * PIECE : bytes[region];
                for (int64_t i = first * PIECE; i + 64 <= end; i += 64) {
                    _mm_prefetch(regions[region] + i + 4096, _MM_HINT_T0);
                    int64_t line[8];
                    std::memcpy(line, regions[region] + i, 64);
                    for (int64_t value : line) sum ^= value;
                }
            });
        }
        total.fetch_xor(sum);
    });
    return total.load();
}

int64_t specd_packed_bytes(int32_t format, int64_t rows, int64_t columns) {
    if (format < 0 || format >= NUM_FORMATS) return -1;
    return blocks_of(rows) * block_bytes(static_cast<Format>(format), columns);
}

int32_t specd_exact_format(int32_t type) { return exact_format(type); }

int32_t specd_pack(int32_t type, int32_t format, const uint8_t* source, int64_t rows,
                   int64_t columns, uint8_t* packed, int32_t num_threads) {
    const int64_t row_bytes = source_bytes(type, columns);
    if (row_bytes < 0 || !has_conversion(type, format)) return -1;
    const int64_t size = block_bytes(static_cast<Format>(format), columns);
    Pool pool(num_threads);
    pool.run([&](Crew& crew) {
        crew.each(blocks_of(rows), [&](int64_t block) {
            const uint8_t* lanes[LANES];
            const int64_t left = rows - block * LANES, count = left < LANES ? left : LANES;
            for (int64_t i = 0; i < count; ++i) {
                const int64_t row = block * LANES + i;
                lanes[i] = source + row * row_bytes;
            }
            pack_block(static_cast<SourceType>(type), static_cast<Format>(format), lanes, count,
                       columns, packed + block * size);
        });
    });
    return 0;
}

void specd_unpack(int32_t format, const uint8_t* packed, int64_t columns, int64_t first,
                  int64_t count, float* out, int32_t num_threads) {
    Pool pool(num_threads);
    pool.run([&](Crew& crew) {
        crew.each(count, [&](int64_t row) {
            unpack_row(static_cast<Format>(format), packed, columns, first + row,
                       out + row * columns);
        });
    });
}

}  // extern "C"
