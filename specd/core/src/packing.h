// Rows of weights from GGUF blocks to packed blocks, and back to numbers.
#pragma once

#include "formats.h"

// 0, or -1 where no conversion from `type` to `format` exists. rows <= 16.
int pack_block(SourceType type, Format format, const uint8_t* const* rows, int64_t count,
               int64_t columns, uint8_t* block);
// fp32 values of row `row` of a packed matrix.
void unpack_row(Format format, const uint8_t* packed, int64_t columns, int64_t row, float* out);
int64_t source_bytes(int32_t type, int64_t columns);
int32_t exact_format(int32_t type);  // -1: unknown type
bool has_conversion(int32_t type, int32_t format);
