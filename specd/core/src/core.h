// The C interface of the core: what Python passes in, by pointer. It links to nothing but libc.
//
// Structures here are mirrored in specd/core/layouts.py; ABI_VERSION is raised with every change.
// All sizes are numbers of elements unless a name says bytes. Matrices are row-major.
// Invariant: a position's logits are a function of its own history, never of the other positions,
// the number of threads, or the way in which a text was cut into steps.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr int32_t ABI_VERSION = 4;

// How the weights of a matrix are stored. 16 output rows lie side by side, so that one vector
// holds the same columns of 16 rows and no sum runs across a vector.
//   *_S: an fp16 scale per 32 weights. *_M: a scale and a minimum, both fp16, per 32.
//   *_K: super-blocks of 256 with fp16 d and dmin; 8-bit scale and minimum per 32.
//   Q6_K: d per 256, signed 8-bit scale per 16. Q2_K: d and dmin, 8-bit scale and minimum per 16.
enum Format : int32_t {
    FORMAT_F32, FORMAT_BF16, FORMAT_Q4_S, FORMAT_Q4_M, FORMAT_Q4_K, FORMAT_Q5_S, FORMAT_Q5_M,
    FORMAT_Q5_K, FORMAT_Q6_K, FORMAT_Q8_S, FORMAT_Q2_K, NUM_FORMATS,
};

// Block types of GGUF files, with the numbers of the format.
enum SourceType : int32_t {
    SOURCE_F32 = 0, SOURCE_F16 = 1, SOURCE_Q4_0 = 2, SOURCE_Q4_1 = 3, SOURCE_Q5_0 = 6,
    SOURCE_Q5_1 = 7, SOURCE_Q8_0 = 8, SOURCE_Q2_K = 10, SOURCE_Q3_K = 11, SOURCE_Q4_K = 12,
    SOURCE_Q5_K = 13, SOURCE_Q6_K = 14, SOURCE_BF16 = 30,
};

enum Activation : int32_t { ACTIVATION_SILU, ACTIVATION_GELU_TANH };

// Rows of a matrix in one format; rows are padded with zeros to a multiple of 16.
struct Part {
    int32_t format;
    int32_t reserved;
    int64_t rows;
    const uint8_t* data;
};

// y = W x + bias; the outputs of the parts lie behind each other.
struct Linear {
    int64_t columns;  // a multiple of 32
    int64_t num_parts;
    const Part* parts;
    const float* bias;  // [rows of all parts], or null
};

struct Layer {
    const float* attn_norm;       // [hidden]
    const float* q_norm;          // [head_dim], or null
    const float* k_norm;          // [head_dim], or null
    const float* post_attn_norm;  // [hidden], or null
    const float* ffn_norm;        // [hidden]
    const float* post_ffn_norm;   // [hidden], or null
    Linear qkv, attn_output, gate, up, down;
    int64_t window;  // positions that a query sees, itself included; 0 for all
    int64_t rope;    // row of Model::inverse_frequencies
};

struct Model {
    int64_t num_layers, hidden, num_heads, num_kv_heads, head_dim, ffn, vocab;
    int64_t activation;   // an Activation
    int64_t kv_is_fp32;   // else fp16
    int64_t num_ropes;
    double norm_eps, embedding_scale, attention_scale;
    const double* inverse_frequencies;  // [num_ropes, head_dim / 2]
    const Layer* layers;
    Part embedding;  // [vocab, hidden]
    const float* final_norm;
    Linear head;
};

// One row of a step: `count` positions of one text, beginning at position `first`.
struct Row {
    int64_t offset;        // flat index of its first position
    int64_t count;
    int64_t first;
    const int64_t* table;  // page ids
};

// KV cache: [layer, page, (K: kv_head, head_dim, token; then V: kv_head, token, head_dim)].
struct Step {
    int64_t num_positions, num_rows, num_wanted, num_pages;
    const int64_t* tokens;  // [positions]
    const Row* rows;        // cover all positions, in order
    const int64_t* wanted;  // flat indices whose logits are asked for
    float* logits;          // [wanted, vocab]
    uint8_t* cache;
};

constexpr int64_t PAGE = 32;  // positions per KV page
constexpr int64_t MAX_VOCAB = 1 << 20;  // of a sampler: sums of weights fit 64 bits

// How a token is chosen from logits [vocab] that have no NaN and a finite largest.
struct Draw {
    const float* logits;
    uint64_t seed;
    uint64_t position;   // with the seed, the key of the noise
    int64_t top_k;       // 0 or less, or the vocabulary and more: off
    double top_p;        // 1: off
    float temperature;   // 0: greedy
    float least_score;   // log(min_p); -infinity: off
};

// A token in the distribution that logits [vocab] describe, and the most probable tokens of it.
struct Standing {
    const float* logits;
    int64_t token;
    int64_t num_best;      // how many are wanted, then how many are possible
    int64_t* best;         // ids, largest logit first, lowest id first among equals
    float* best_logprobs;
    int64_t rank;          // 1 + the tokens with larger logits
    double logprob;
};

struct Core;
struct Sampler;

#pragma GCC visibility push(default)
extern "C" {
int32_t specd_abi_version();
// 1 if this processor runs `isa`: 0 avx2, 1 avx512, 2 avx512 with bf16 products.
int32_t specd_supports(int32_t isa);

// Threads and working memory for steps of up to `max_positions`. Null where memory is short.
Core* specd_create(const Model* model, int64_t max_positions, int32_t num_threads, int32_t isa);
void specd_destroy(Core* core);
void specd_run(Core* core, const Step* step);

// The parts of a step, for tests and probes. activations [positions, columns] -> out.
void specd_linear(const Linear* linear, const float* activations, int64_t positions, float* out,
                  int32_t num_threads, int32_t isa);

// What chooses tokens, for one call at a time. The threads are those of `core`, which has to outlive
// it, or `num_threads` of its own where that is null. Null where memory is short, or the vocabulary
// exceeds MAX_VOCAB.
Sampler* specd_sampler_create(Core* core, int64_t vocab, int32_t num_threads, int32_t isa);
void specd_sampler_destroy(Sampler* sampler);
// One token for each of `draws`.
void specd_sample(Sampler* sampler, const Draw* draws, int64_t count, int64_t* tokens);
// What the noise of a draw is added to, [vocab]: -infinity where the token is removed.
void specd_scores(Sampler* sampler, const Draw* draw, float* scores);
// Of each of `count` rows [vocab]: the lowest id of its largest logit, and whether that is finite
// and no logit a NaN.
void specd_examine(Sampler* sampler, const float* rows, int64_t count, int64_t* ids,
                   uint8_t* finite);
// Fills in what follows the token.
void specd_measure(Sampler* sampler, Standing* standings, int64_t count);
// For tests: the hashes of tokens 0 .. count under a key, and the noise that hashes give.
void specd_hashes(uint64_t seed, uint64_t position, int64_t count, uint32_t* hashes, int32_t isa);
void specd_noise(const uint32_t* hashes, int64_t count, float* noise, int32_t isa);

// Reads `count` regions, begin to end, and computes nothing worth having: what memory takes.
int64_t specd_read(const uint8_t* const* regions, const int64_t* bytes, int64_t count,
                   int32_t num_threads);

int64_t specd_packed_bytes(int32_t format, int64_t rows, int64_t columns);  // -1: unknown format
// The format that keeps every bit of a source type; -1 if there is none.
int32_t specd_exact_format(int32_t type);
// Rows of `source` -> packed rows. 0, or -1 where no conversion from `type` to `format` exists.
int32_t specd_pack(int32_t type, int32_t format, const uint8_t* source, int64_t rows,
                   int64_t columns, uint8_t* packed, int32_t num_threads);
// fp32 values of packed rows first .. first + count.
void specd_unpack(int32_t format, const uint8_t* packed, int64_t columns, int64_t first,
                  int64_t count, float* out, int32_t num_threads);
}
#pragma GCC visibility pop
