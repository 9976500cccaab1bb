#pragma once

// The arguments of the kernels of kernels/image/conv2d.h, and their copies of inputs and weights to shared memory:
// vectors of 16 bytes, partly zeros if needed, asynchronous if the GPU supports it. Only .cu files include this header.

#include <cstdint>

#include "kernels/core/epilogue.cuh"
#include "kernels/core/launch.cuh"
#include "kernels/core/tensor_cores.cuh"
#include "kernels/image/conv2d.h"
#include "kernels/image/conv2d_products.cuh"

namespace voxserve::kernels::cuda {

template <typename T>
struct Conv2dArguments {
  Conv2dGeometry geometry;
  int64_t num_images;
  int32_t in_rows;
  int32_t in_columns;
  int32_t out_rows;
  int32_t out_columns;
  const T* in;
  int64_t in_pitch;
  int32_t group_in_channels;
  int32_t padded_in_channels;  // per cell: a multiple of whole vectors
  bool in_vectors;             // every cell's channels begin at a multiple of 16 bytes
  const unsigned char* weights;
  int32_t num_chunks;  // the weights have room for so many chunks per phase and group
  int32_t group_out_channels;
  int32_t padded_out_channels;  // per group: the weights' rows in a chunk
  int32_t num_column_tiles;
  void* out;
  int64_t out_pitch;
  bool is_out_float;
  bool out_vectors;  // outputs, residuals and biases are accessed kVectorValues at a time
  TypedEpilogue<T, float> epilogue;
};

// Does what CopyAsync16 does; on a GPU without asynchronous copies it copies at once.
__device__ inline void CopyVector16(unsigned char* to, const void* from, int32_t bytes) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  CopyAsync16(SharedAddress(to), from, bytes);
#else
  Pack<uint16_t, 8> vector;
#pragma unroll
  for (int i = 0; i < 8; ++i) vector.values[i] = 2 * i < bytes ? static_cast<const uint16_t*>(from)[i] : 0;
  *reinterpret_cast<Pack<uint16_t, 8>*>(to) = vector;
#endif
}

// Groups the thread's copies since the last call.
__device__ inline void CommitVectors() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  CommitCopies();
#endif
}

// Waits until all but the thread's last kPending groups have landed. It waits for the calling thread's copies only.
template <int kPending>
__device__ void WaitForVectors() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  WaitForCopies<kPending>();
#endif
}

// Copies a vector of the inputs: the first `count` values, then zeros.
template <typename T>
__device__ void CopyInputs(unsigned char* to, const T* from, int32_t count, const Conv2dArguments<T>& arguments) {
  if (arguments.in_vectors) {
    CopyVector16(to, count > 0 ? static_cast<const void*>(from) : arguments.weights, count * int32_t{sizeof(T)});
    return;
  }
  Pack<T, kVectorValues<T>> values;
#pragma unroll
  for (int i = 0; i < kVectorValues<T>; ++i) values.values[i] = i < count ? from[i] : FromFloat<T>(0);
  *reinterpret_cast<Pack<T, kVectorValues<T>>*>(to) = values;
}

}  // namespace voxserve::kernels::cuda
