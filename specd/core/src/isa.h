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
};

extern const Isa ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16;
