#pragma once

// Functions and types that all launchers (cuda_stream.h) share. Only .cu files include this header.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/device_code.h"
#include "kernels/core/dtype.h"
#include "kernels/core/rows.h"

// Returns the expression's error from the launcher if the expression fails.
#define VOXSERVE_RETURN_IF_CUDA(expression)                                                           \
  do {                                                                                                \
    if (const cudaError_t cuda_error_ = (expression); cuda_error_ != cudaSuccess) return cuda_error_; \
  } while (false)

namespace voxserve::kernels::cuda {

inline constexpr int kBlockThreads = 256;

// Returns the number of thread blocks for `count` threads, limited to the range from 1 to 2^30. 2^30 blocks of
// kBlockThreads are 2^38 threads. No device's memory holds that many values, so the upper limit never leaves work out.
inline unsigned NumBlocks(int64_t count, int block_threads = kBlockThreads) {
  constexpr int64_t kMaxBlocks = int64_t{1} << 30;
  return static_cast<unsigned>(std::clamp<int64_t>((count + block_threads - 1) / block_threads, 1, kMaxBlocks));
}

// Returns the number of blocks per SM for __launch_bounds__: `wanted` blocks of kBlockThreads, but in code for GPUs
// before sm_80 at most 4, since an SM of Turing (sm_75) holds no more.
constexpr int BlocksAnSm(int wanted) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  return wanted < 4 ? wanted : 4;
#else
  return wanted;
#endif
}

// Marks in the profiler how long a launcher runs on the host. The name is the launcher's, a string literal.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name) { nvtxRangePushA(name); }
  ~NvtxRange() { nvtxRangePop(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

// Returns the error of the last launch. A debug build also waits for the kernel, so that the kernel's own errors are
// reported here.
inline cudaError_t LaunchStatus([[maybe_unused]] cudaStream_t stream) {
  VOXSERVE_RETURN_IF_CUDA(cudaPeekAtLastError());
#ifndef NDEBUG
  return cudaStreamSynchronize(stream);
#else
  return cudaSuccess;
#endif
}

// Waits until the earlier kernels of the stream have ended and their writes are visible, and then lets the next kernel
// start early. A kernel must call this function if it is launched before its predecessor has ended (LaunchEarly).
//
// Before this call a kernel must not read anything that its direct predecessor writes, nor write anything that it uses.
// It may use the results of still earlier kernels: these have ended, because the predecessor, unless it calls
// LetNextKernelStart, lets its successor start only in this function, after its own wait. For the same reason at least
// one thread of each block must call it, also where the block has no work.
__device__ inline void WaitForEarlierKernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// Lets the next kernel start early although this one has not waited yet. This one still calls WaitForEarlierKernels, at
// the latest as its last statement. Until the next kernel has waited, it may use the results only of kernels that had
// ended when this one started, and must not write anything that the others use.
__device__ inline void LetNextKernelStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

// Launches a kernel whose threads call WaitForEarlierKernels before they use their predecessor's memory. On Hopper its
// blocks start while the kernel before it ends (programmatic dependent launch, CUDA C++ Programming Guide), which saves
// about a microsecond for each of the many small kernels of a batch.
template <typename... Params, typename... Arguments>
cudaError_t LaunchEarly(void (*kernel)(Params...), dim3 blocks, int threads, size_t shared_bytes, cudaStream_t stream,
                        const Arguments&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = CodeVersion() == kWarpGroupCode ? 1 : 0;
  VOXSERVE_RETURN_IF_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(arguments)...));
  return LaunchStatus(stream);
}

// Lets the kernel's blocks have up to `bytes` of dynamic shared memory, once on each device. done: of the kernel, a bit
// for each of the first 64 devices, initially 0. Several threads may call this function; setting the limit twice does
// no harm.
template <typename Kernel>
cudaError_t AllowSharedMemory(const Kernel& kernel, int bytes, int device, std::atomic<uint64_t>& done) {
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (device < 64 && (done.load(std::memory_order_relaxed) & bit) != 0) return cudaSuccess;
  VOXSERVE_RETURN_IF_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  VOXSERVE_RETURN_IF_CUDA(
      cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared));
  done.fetch_or(bit, std::memory_order_relaxed);
  return cudaSuccess;
}

// Cuts a caller's workspace into 256-byte aligned arrays. With a null base it only counts bytes. So a ...WorkspaceBytes
// function and its launcher can run the same list of Take calls.
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

// Calls visit(T{}) with the C++ type T of a dtype of features, and returns the cudaError_t that visit returns. Returns
// cudaErrorInvalidValue for a dtype that holds no features. This is the only place where dtypes become types.
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
    case DType::kInt8:
      break;
  }
  return cudaErrorInvalidValue;
}

// Calls visit(T{}, Out{}) for a kernel that reads features of `dtype` and writes `out_dtype`, and returns the
// cudaError_t that visit returns. out_dtype must be dtype or float32, else cudaErrorInvalidValue is returned.
template <typename Visitor>
cudaError_t VisitInAndOutType(DType dtype, DType out_dtype, const Visitor& visit) {
  return VisitFeatureType(dtype, [&](auto in) {
    if (out_dtype == dtype) return visit(in, in);
    if (out_dtype == DType::kFloat32) return visit(in, float{});
    return cudaErrorInvalidValue;
  });
}

// Returns the address of a row of float32 values.
__device__ inline const float* FloatsOf(const ConstRows& rows, int64_t row) {
  return static_cast<const float*>(rows.data) + row * rows.pitch;
}

// Converts a feature to float32. Kernels compute in float32 whatever the storage type.
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
