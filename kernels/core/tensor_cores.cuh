#pragma once

// This header wraps the tensor core instructions of single warps (mma.sync), and the instructions that feed them:
// asynchronous copies to shared memory, and loads of matrices from there. A uint32_t address is an address in shared
// memory. The instructions exist from sm_80 on, and the caller guards the code by __CUDA_ARCH__. Only .cu files include
// this header.
//
// A product (MultiplyAdd) is D [16, 8] += A [16, 16] B [16, 8] with float32 sums. With float32 factors, which must be
// rounded to TensorFloat-32 before, it is A [16, 8] B [8, 8], and one value of 32 bits takes the place of two
// neighbouring values below. Registers of lane 4 * g + t:
//   A: a[0] = (row g, columns 2t, 2t+1), a[1] = (g + 8, same), a[2] = (g, 2t+8, 2t+9), a[3] = (g + 8, 2t+8, 2t+9)
//   B: b[0] = (rows 2t, 2t+1, column g), b[1] = (rows 2t+8, 2t+9, column g)
//   D: d[0] = (g, 2t), d[1] = (g, 2t+1), d[2] = (g + 8, 2t), d[3] = (g + 8, 2t+1).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace voxserve::kernels::cuda {

// Returns the address of a pointer to shared memory within the shared memory, in bytes.
__device__ inline uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts to copy `bytes` bytes (0 to 16) from global to shared memory, and to fill the rest of 16 bytes with zeros.
// Both addresses are 16-byte aligned.
__device__ inline void CopyAsync16(uint32_t to, const void* from, int32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Starts to copy 4 bytes, or to store 4 bytes of zeros if `bytes` is 0. Both addresses are 4-byte aligned.
__device__ inline void CopyAsync4(uint32_t to, const void* from, int32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Makes one group of the copies that the thread has started since its last call.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until all groups of the calling thread but the last kPending have landed. It does not wait for other threads'
// copies.
template <int kPending>
__device__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Loads four 8 x 8 matrices of 16-bit values. Lane 8 * i + r passes the address of row r of matrix i. Lane 4 * g + t
// gets (row g, columns 2t, 2t+1) of each matrix.
__device__ inline void LoadMatrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// Does the same for two matrices; the first 16 lanes pass the addresses of their rows.
__device__ inline void LoadMatrices(uint32_t (&to)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row)
               : "memory");
}

// Does the same as the first LoadMatrices, with each matrix transposed: lane 4 * g + t gets (rows 2t, 2t+1, column g).
__device__ inline void LoadTransposedMatrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ inline void LoadTransposedMatrices(uint32_t (&to)[2], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(row)
               : "memory");
}

// Rounds a float's bits to the nearest TensorFloat-32.
__device__ inline uint32_t RoundedToTf32(uint32_t bits) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(rounded) : "f"(__uint_as_float(bits)));
  return rounded;
}

// Adds a product to d. b0 and b1 are the registers of B. All lanes of a warp call it.
template <typename T>
__device__ void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (std::is_same_v<T, float>) {  // the factors' bits are TensorFloat-32 values
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Adds the product of A [16, 8] and B [8, 8], of 16-bit values, to d. a0, a1 and b0 are a[0], a[1] and b[0] above.
template <typename T>
__device__ void MultiplyAddHalf(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b0) {
  static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
  }
}

}  // namespace voxserve::kernels::cuda
