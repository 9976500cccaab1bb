#pragma once

// What the kernels of kernels/image/conv2d.h are told, and how they copy inputs and weights to shared memory: vectors
// of 16 bytes, asynchronously where the GPU can, of which a part may be zeros. Included by .cu files alone.

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
  int32_t padded_in_channels;  // of a cell: whole vectors
  bool in_vectors;             // a cell's channels begin at multiples of 16 bytes
  const unsigned char* weights;
  int32_t num_chunks;  // for which each phase and group has room
  int32_t group_out_channels;
  int32_t padded_out_channels;  // of a group: the weights' rows in a chunk
  int32_t num_column_tiles;
  void* out;
  int64_t out_pitch;
  bool is_out_float;
  bool out_vectors;  // outputs, residuals and biases by kVectorValues
  TypedEpilogue<T, float> epilogue;
};

// Like CopyAsync16, where there are asynchronous copies.
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

// Makes the thread's copies since the last call one group.
__device__ inline void CommitVectors() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  CommitCopies();
#endif
}

// Waits until all but the thread's last kPending groups have arrived, for the thread itself.
template <int kPending>
__device__ void WaitForVectors() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  WaitForCopies<kPending>();
#endif
}

// A vector of the inputs, of which the first `count` values are read and the others become 0.
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
