#pragma once

// RowChunks distributes the feature rows of a matrix over the threads of a kernel. A row is cut into chunks, and one
// thread reads or writes a chunk in one access. Neighbouring threads take neighbouring chunks. A block takes as many
// whole rows as it has threads for. Only .cu files include this header.

#include <algorithm>
#include <cstdint>

#include "kernels/core/launch.cuh"
#include "kernels/core/row_tiles.cuh"
#include "kernels/core/rows.h"

namespace voxserve::kernels::cuda {

// The most bytes that one thread reads or writes in one access.
inline constexpr int64_t kVectorBytes = 16;

// Neighbouring values that one thread loads and stores together, in accesses of 16 bytes if the values fill 16 bytes.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount < kVectorBytes ? sizeof(T) * kCount : kVectorBytes) Pack {
  T values[kCount];
};

template <int kCount, typename T>
__device__ Pack<T, kCount> LoadPack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}

// Does the same as LoadPack, for memory that no thread writes while the kernel runs.
template <int kCount, typename T>
__device__ Pack<T, kCount> LoadConstantPack(const T* from) {
  Pack<T, kCount> pack;
  if constexpr (sizeof(pack) % kVectorBytes == 0) {
#pragma unroll
    for (size_t i = 0; i < sizeof(pack) / kVectorBytes; ++i) {
      reinterpret_cast<uint4*>(&pack)[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    }
  } else {
    pack = LoadPack<kCount>(from);
  }
  return pack;
}

struct RowChunks {
  int64_t capacity;         // the largest possible number of rows
  const int64_t* num_rows;  // [1] the number of rows, in device memory; null: capacity rows exist
  int32_t chunks;           // per row
  int32_t lanes;            // threads per row; each takes every lanes-th chunk
  int32_t rows_a_block;     // rows_a_block * lanes <= kBlockThreads; the threads beyond are idle

  RowChunks(int64_t rows, int64_t chunks_a_row, const int64_t* rows_there = nullptr)
      : capacity(rows),
        num_rows(rows_there),
        chunks(static_cast<int32_t>(chunks_a_row)),
        lanes(std::min(chunks, int32_t{kBlockThreads})),
        rows_a_block(kBlockThreads / lanes) {}

  // Returns the number of blocks of kBlockThreads threads. It fits 32 bits, since there are at most 2^31 rows.
  unsigned NumBlocks() const { return static_cast<unsigned>((capacity + rows_a_block - 1) / rows_a_block); }

  // Calls visit(row, chunk) for the calling thread's chunks.
  template <typename Visitor>
  __device__ void ForEach(const Visitor& visit) const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t row_in_block = thread / lanes;
    const int64_t row = int64_t{blockIdx.x} * rows_a_block + row_in_block;
    if (row_in_block >= rows_a_block || row >= NumRows(capacity, num_rows)) return;
    for (int32_t chunk = thread - row_in_block * lanes; chunk < chunks; chunk += lanes) visit(row, chunk);
  }
};

// Finds the widest access that is aligned for all rows of a launch. Add ORs the addresses, pitches and sizes (in bytes)
// at which accesses begin, and the lowest bit that is set is the alignment that they share.
class CommonAlignment {
 public:
  CommonAlignment& Add(const void* pointer) {
    bits_ |= reinterpret_cast<uintptr_t>(pointer);
    return *this;
  }
  CommonAlignment& Add(int64_t bytes) {
    bits_ |= static_cast<uint64_t>(bytes);
    return *this;
  }
  // Adds the alignment of every row's beginning.
  CommonAlignment& Add(const ConstRows& rows) {
    return rows.data == nullptr ? *this : Add(rows.data).Add(rows.pitch_bytes());
  }
  // Returns the common alignment, a power of two of at most kVectorBytes.
  int64_t bytes() const { return static_cast<int64_t>(bits_ & (~bits_ + 1)); }

 private:
  uint64_t bits_ = kVectorBytes;
};

}  // namespace voxserve::kernels::cuda
