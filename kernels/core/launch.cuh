#pragma once

// How launchers launch. Included by .cu files alone.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/dtype.h"
#include "kernels/core/rows.h"

// Returns from the launcher with the error.
#define VOXSERVE_RETURN_IF_CUDA(expression)                                                           \
  do {                                                                                                \
    if (const cudaError_t cuda_error_ = (expression); cuda_error_ != cudaSuccess) return cuda_error_; \
  } while (false)

namespace voxserve::kernels::cuda {

inline constexpr int kBlockThreads = 256;

// Blocks for `count` threads of work, at least one. The clip, at 2^38 threads of kBlockThreads, is above the number of
// values that a device's memory holds: kernels need not stride over the grid for it.
inline unsigned NumBlocks(int64_t count, int block_threads = kBlockThreads) {
  constexpr int64_t kMaxBlocks = int64_t{1} << 30;
  return static_cast<unsigned>(std::clamp<int64_t>((count + block_threads - 1) / block_threads, 1, kMaxBlocks));
}

// For __launch_bounds__: as many blocks of kBlockThreads an SM as wanted, or as Turing's SMs can hold.
constexpr int BlocksAnSm(int wanted) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return wanted < 4 ? wanted : 4;
#else
  return wanted;
#endif
}

// A range in the profiler for the launcher's duration. Name: the launcher's, a string literal.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

// The error of the launch before it. A debug build waits for the kernel too, so that its own errors come up here.
inline cudaError_t LaunchStatus([[maybe_unused]] cudaStream_t stream) {
  VOXSERVE_RETURN_IF_CUDA(cudaPeekAtLastError());
#ifndef NDEBUG
  return cudaStreamSynchronize(stream);
#else
  return cudaSuccess;
#endif
}

// Cuts a caller's workspace into arrays of 256-byte alignment. With a null base it only counts: a launcher's
// ...WorkspaceBytes and the launcher itself walk the same list of Take calls.
class WorkspaceCutter {
 public:
  explicit WorkspaceCutter(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  T* Take(int64_t count) {
    T* const array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return array;
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kAlignment = 256;
  char* base_;
  size_t bytes_ = 0;
};

// Calls visit(T{}) with the C++ type of a feature's dtype: the one place where dtypes become types. Returns visit's
// cudaError_t; cudaErrorInvalidValue for a dtype that holds no features.
template <typename Visitor>
cudaError_t VisitFeatureType(DType dtype, const Visitor& visit) {
  switch (dtype) {
    case DType::kFloat32:
      return visit(float{});
    case DType::kFloat16:
      return visit(__half{});
    case DType::kBfloat16:
      return visit(__nv_bfloat16{});
    case DType::kUint8:
    case DType::kUint16:
      break;
  }
  return cudaErrorInvalidValue;
}

// Calls visit(T{}, Out{}) with the types of features that are computed from `dtype` and stored as `out_dtype`, which is
// dtype itself or float32.
template <typename Visitor>
cudaError_t VisitInAndOutType(DType dtype, DType out_dtype, const Visitor& visit) {
  return VisitFeatureType(dtype, [&](auto in) {
    if (out_dtype == dtype) return visit(in, in);
    if (out_dtype == DType::kFloat32) return visit(in, float{});
    return cudaErrorInvalidValue;
  });
}

// A row of float32 values.
__device__ inline const float* FloatsOf(const ConstRows& rows, int64_t row) {
  return static_cast<const float*>(rows.data) + row * rows.pitch;
}

// Features are computed in float32 whatever they are stored as.
__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__half value) { return __half2float(value); }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
template <typename T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

}  // namespace voxserve::kernels::cuda
