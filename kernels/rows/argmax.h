#pragma once

// The channel of the largest value of each row; ties go to the lowest channel, NaN never wins (a row of NaN gives 0).

#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

struct ArgmaxParams {
  int64_t num_rows = 0;
  int32_t channels = 0;           // 1 to 65,536
  DType dtype = DType::kFloat32;  // of in; the CPU has float32 alone
  const void* in = nullptr;       // [num_rows, channels], rows in_pitch apart
  int64_t in_pitch = 0;           // values
  int32_t label_bytes = 1;        // 1 or 2: how a label is stored
  void* labels = nullptr;         // [num_rows] uint8 or uint16
};
static_assert(std::is_trivially_copyable_v<ArgmaxParams>);

namespace cpu {

void Argmax(const ArgmaxParams& params, ThreadPool& pool);

}  // namespace cpu

namespace cuda {

cudaError_t Argmax(const ArgmaxParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
