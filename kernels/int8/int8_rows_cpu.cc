#include <cassert>

#include "kernels/int8/int8_dispatch.h"
#include "kernels/int8/int8_rows.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kConvertedRows = 1024;

}  // namespace

Int8Values ValuesOf(const ConstRows& rows, int64_t first_row) {
  assert(rows.dtype == DType::kFloat32 || rows.dtype == DType::kUint8 || rows.dtype == DType::kInt8);
  const Int8Type type = rows.dtype == DType::kFloat32 ? Int8Type::kFloat32
                        : rows.dtype == DType::kUint8 ? Int8Type::kUint8
                                                      : Int8Type::kInt8;
  if (rows.data == nullptr) return {.data = nullptr, .pitch = 0, .type = type};
  return {.data = const_cast<char*>(static_cast<const char*>(rows.data)) + first_row * rows.pitch_bytes(),
          .pitch = rows.pitch,
          .type = type};
}

void ConvertInt8Rows(const Int8RowsParams& params, ThreadPool& pool) {
  ConvertInt8Rows(*SupportedInt8Isas().front(), params, pool);
}

void ConvertInt8Rows(const Int8Isa& isa, const Int8RowsParams& params, ThreadPool& pool) {
  pool.ParallelFor(params.out.capacity, kConvertedRows, [&](int64_t begin, int64_t end) {
    isa.convert({.num_rows = end - begin,
                 .channels = params.out.channels,
                 .in = ValuesOf(params.in, begin),
                 .in_scale = params.in_scale,
                 .inverse_scale = params.inverse_scale,
                 .out = ValuesOf(params.out, begin)});
  });
}

}  // namespace voxserve::kernels::cpu
