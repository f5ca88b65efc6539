// What each instruction set provides. isa.cpp is compiled once per set, with ISA as its namespace.
#pragma once

#include "core.h"
#include "pool.h"

struct Isa {
    void (*forward)(Crew& crew, const Model& model, const Step& step, void* work);
    void (*multiply)(Pool& pool, const Linear& linear, const float* x, int64_t positions,
                     float* out);
    void* (*workspace)(const Model& model, int64_t positions, int num_threads);
    void (*discard)(void* work);
    // scratch: [vocab + 2 * LANES]
    int64_t (*sample)(const Draw& draw, int64_t vocab, float* scratch);
    void (*scores)(const Draw& draw, int64_t vocab, float* out, float* scratch);
    bool (*examine)(const float* row, int64_t vocab, int64_t* id, float* scratch);
    void (*measure)(Standing& standing, int64_t vocab, float* scratch);
    void (*hashes)(uint64_t seed, uint64_t position, int64_t count, uint32_t* out);
    void (*noise)(const uint32_t* hashes, int64_t count, float* out);
};

extern const Isa ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16;
