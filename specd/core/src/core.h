// The C interface of the core: what Python passes in, by pointer. It links to nothing but libc.
//
// Structures here are mirrored in specd/core/layouts.py; ABI_VERSION is raised with every change.
// All sizes are numbers of elements unless a name says bytes. Matrices are row-major.
// Invariant: a position's logits are a function of its own history, never of the other positions,
// the number of threads, or the way in which a text was cut into steps.
#pragma once

#include <cstddef>
#include <cstdint>

constexpr int32_t ABI_VERSION = 3;

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

struct Core;

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
