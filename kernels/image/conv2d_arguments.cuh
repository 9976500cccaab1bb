#pragma once

// This file has the arguments of the kernels of kernels/image/conv2d.h, and the device functions with which these
// kernels copy inputs and weights to shared memory. Copies move vectors of 16 bytes and fill missing values with zeros.
// They are asynchronous if the GPU supports this (from sm_80 on). conv2d.h defines phases, conv2d_summed_axis.h defines
// chunks. Only .cu files include this header.

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
  int64_t in_pitch;            // values from one position's channels to the next position's channels
  int32_t group_in_channels;   // input channels of one group
  int32_t padded_in_channels;  // group_in_channels rounded up to whole vectors
  bool in_vectors;             // true if every cell's channels begin at a multiple of 16 bytes
  const unsigned char* weights;
  int32_t num_chunks;           // chunks per phase and group for which `weights` has room
  int32_t group_out_channels;   // output channels of one group
  int32_t padded_out_channels;  // rows of weights in one chunk of a group; at least group_out_channels
  int32_t num_column_tiles;     // tiles of output channels in one group
  void* out;
  int64_t out_pitch;
  bool is_out_float;
  bool out_vectors;  // true if outputs, residuals and biases are accessed kVectorValues at a time
  TypedEpilogue<T, float> epilogue;
};

// Copies `bytes` bytes, and fills up to 16 bytes with zeros. The copy is asynchronous (CopyAsync16) if the GPU supports
// this.
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

// Makes one group of the thread's copies since the last call, for WaitForVectors.
__device__ inline void CommitVectors() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  CommitCopies();
#endif
}

// Waits until all but the last kPending groups of the calling thread's copies have arrived. It does not wait for the
// copies of other threads.
template <int kPending>
__device__ void WaitForVectors() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  WaitForCopies<kPending>();
#endif
}

// Copies `count` values of the inputs to a vector in shared memory, and fills the rest of the vector with zeros.
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
