#pragma once

// The functions of int8_product.h and int8_rows.h with a vector instruction set that the caller chooses. Those headers'
// functions choose the fastest set; tests use this header to check that all sets give the same bytes.

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "kernels/int8/int8_isa.h"
#include "kernels/int8/int8_product.h"
#include "kernels/int8/int8_rows.h"

namespace voxserve::kernels::cpu {

// Returns the sets that both this machine and this build have, the fastest first; never empty.
const std::vector<const Int8Isa*>& SupportedInt8Isas();

// Returns rows from `first_row` on, as functions of a set take them. They are float32, uint8 or int8.
Int8Values ValuesOf(const ConstRows& rows, int64_t first_row);

// Weights must be packed with the same set that reads them.
std::vector<Int8Line> PackInt8Weights(const Int8Isa& isa, const int8_t* weights, int32_t num_offsets,
                                      int32_t in_channels, int32_t out_channels);
void Int8Conv(const Int8Isa& isa, const Int8ConvParams& params, ThreadPool& pool, std::pmr::memory_resource* memory);
void Int8Linear(const Int8Isa& isa, const Int8LinearParams& params, ThreadPool& pool,
                std::pmr::memory_resource* memory);
void Int8Conv2d(const Int8Isa& isa, const Int8Conv2dParams& params, ThreadPool& pool,
                std::pmr::memory_resource* memory);
void ConvertInt8Rows(const Int8Isa& isa, const Int8RowsParams& params, ThreadPool& pool);

}  // namespace voxserve::kernels::cpu
