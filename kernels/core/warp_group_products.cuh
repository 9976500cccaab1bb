#pragma once

// This header wraps Hopper's tensor core instructions of warp groups (wgmma). A warp group is 4 consecutive warps; the
// number of the first is a multiple of 4. The instructions exist for sm_90a only, and the caller guards the code by
// VOXSERVE_HAS_WARP_GROUP_PRODUCTS. Only .cu files include this header.
//
// A product (MultiplyAddGroup) is D [64, n] += A [64, k] B [k, n], or D = A B. It takes 32 bytes of each row of A and
// B^T: k = 16 values of 16 bits, with float32 sums, or k = 32 values of 8 bits, with int32 sums. In 8 bits A is uint8
// or int8, and B is int8. In shared memory A and B^T are stored as rows of 128, 64 or 32 bytes, in tiles of 8 rows, one
// tile after the other. Vector v of a row (16 bytes each) is stored at place v ^ (row % 8) in rows of 128 bytes (the
// 128-byte swizzle), at place v ^ (row / 2 % 4) in rows of 64 bytes (the 64-byte swizzle), and at place v ^ (row / 4 %
// 2) in rows of 32 bytes (the 32-byte swizzle). A and B^T may have rows of different lengths.
//
// Lane 4 g + t of warp w holds in d[4 j .. 4 j + 3] the values of D at (16 w + g, 8 j + 2 t), (.., 8 j + 2 t + 1), (16
// w + g + 8, 8 j + 2 t) and (.., 8 j + 2 t + 1).
//
// A of 16 bits may be in registers, so that the result of one product can be a factor of the next one. Lane 4 g + t of
// warp w holds in a[0] the values of A at (16 w + g, 2 t) and (.., 2 t + 1), in a[1] those at (16 w + g + 8, the same
// columns), in a[2] those at (16 w + g, 2 t + 8) and (.., 2 t + 9), and in a[3] those at (16 w + g + 8, these columns).
// So the sums d[8 s .. 8 s + 7] of 64 columns, rounded to 16 bits, are A of step s (RoundToFactors). The registers of A
// must not change until a wait has ended the series of products (WaitForProducts).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define VOXSERVE_HAS_WARP_GROUP_PRODUCTS 1
#else
#define VOXSERVE_HAS_WARP_GROUP_PRODUCTS 0
#endif

namespace voxserve::kernels::cuda {

// Returns the matrix descriptor (PTX) of the operand that begins at `address` in shared memory. Its tiles of 8 rows
// must be aligned to their size. Every product along the rows moves the address by 32 bytes, within the tiles.
// kRowBytes: 128, 64 or 32, which also is the swizzle.
template <int kRowBytes = 128>
__device__ uint64_t SwizzledMatrix(uint32_t address) {
  static_assert(kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32);
  constexpr uint64_t kSwizzle = uint64_t{kRowBytes == 128 ? 1 : kRowBytes == 64 ? 2 : 3} << 62;
  constexpr uint64_t kEightRows = uint64_t{8 * kRowBytes >> 4} << 32;  // bytes to the next 8 rows
  constexpr uint64_t kUnused = uint64_t{1} << 16;
  return kSwizzle | kEightRows | kUnused | ((address & 0x3ffff) >> 4);
}

// Returns the descriptor of a factor B [16, n] of 16 bits that is stored as 16 rows of n values: the first 16 columns
// are rows of 32 bytes with the 32-byte swizzle from `address` on, and up to 16 more columns are stored likewise from
// `next` on, which is behind.
__device__ inline uint64_t TransposedMatrix(uint32_t address, uint32_t next) {
  constexpr uint64_t kSwizzle = uint64_t{3} << 62, kEightRows = uint64_t{8 * 32 >> 4} << 32;
  return kSwizzle | kEightRows | uint64_t{next - address} >> 4 << 16 | ((address & 0x3ffff) >> 4);
}

// Returns the descriptor of a factor of 16 bits without a swizzle. It is stored as matrices of 8 rows of 16 bytes, each
// of which is 128 bytes, one row after the other. The rows of a matrix are 8 rows of 8 values of A or B^T: the matrix
// of the next 8 values is k_bytes behind, that of the next 8 rows n_bytes. Where a product takes a TransposedMatrix,
// the rows are 8 rows of 8 values of B [16, n]: the matrix of the next 8 rows is k_bytes behind, that of the next 8
// values n_bytes. So k_bytes is always a step along k. The address is 16-byte aligned.
__device__ inline uint64_t PlainMatrix(uint32_t address, uint32_t k_bytes, uint32_t n_bytes) {
  return uint64_t{n_bytes} >> 4 << 32 | uint64_t{k_bytes} >> 4 << 16 | ((address & 0x3ffff) >> 4);
}

// Rounds two values to 16 bits. The first is in the lower half.
template <typename T>
__device__ uint32_t RoundPair(float first, float second) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// Rounds the sums of a product to the first factors of kCount / 8 further products.
template <typename T, int kCount>
__device__ void RoundToFactors(const float (&sums)[kCount], uint32_t (&factors)[kCount / 8][4]) {
#pragma unroll
  for (int s = 0; s < kCount / 8; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i) factors[s][i] = RoundPair<T>(sums[8 * s + 2 * i], sums[8 * s + 2 * i + 1]);
  }
}

#if VOXSERVE_HAS_WARP_GROUP_PRODUCTS

// Makes a thread's earlier writes to shared memory, ordinary and asynchronous, visible to products. A thread that has
// written calls it before it meets the multiplying threads at a barrier; or a multiplying thread calls it after it has
// met the writers at a barrier.
__device__ inline void PublishToProducts() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// A warp group calls BeginProducts before the first product of a series. The call does not change registers.
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
// A warp group calls CommitProducts after the last product of a series.
__device__ inline void CommitProducts() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
// Waits until all series but the last kPending are done.
template <int kPending>
__device__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// A warp group calls HoldBackReads after the WaitForProducts that ends the series of these sums. It keeps the compiler
// from reading the sums before the wait, since the compiler sees no connection between the wait and the sums.
template <int kCount>
__device__ void HoldBackReads(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}
template <int kCount>
__device__ void HoldBackReads(int32_t (&sums)[kCount]) {
#pragma unroll
  for (int32_t& sum : sums) asm volatile("" : "+r"(sum)::"memory");
}

// Changes the number of registers of each thread of the warp group to kRegisters. kAreMore says whether this is more
// than at the kernel's start. All threads of the warp group call it.
template <int kRegisters, bool kAreMore>
__device__ void SetRegisters() {
  if constexpr (kAreMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
  }
}

// clang-format off
// Operand lists of the instructions. VOXSERVE_SUMS_n(c, i) lists registers d[i] to d[i + n - 1] as asm operands of
// constraint c, which are the sums of 2 n columns. VOXSERVE_NAMES_i lists the names of 16 operands, from %i on.
#define VOXSERVE_SUMS_4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define VOXSERVE_SUMS_8(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3]), c(d[i + 4]), c(d[i + 5]), c(d[i + 6]), \
                              c(d[i + 7])
#define VOXSERVE_SUMS_16(c, i) VOXSERVE_SUMS_8(c, i), VOXSERVE_SUMS_8(c, i + 8)
#define VOXSERVE_SUMS_32(c, i) VOXSERVE_SUMS_16(c, i), VOXSERVE_SUMS_16(c, i + 16)
#define VOXSERVE_SUMS_64(c, i) VOXSERVE_SUMS_32(c, i), VOXSERVE_SUMS_32(c, i + 32)
#define VOXSERVE_SUMS_OF_8(c) VOXSERVE_SUMS_4(c, 0)
#define VOXSERVE_SUMS_OF_24(c) VOXSERVE_SUMS_8(c, 0), VOXSERVE_SUMS_4(c, 8)
#define VOXSERVE_SUMS_OF_32(c) VOXSERVE_SUMS_16(c, 0)
#define VOXSERVE_SUMS_OF_64(c) VOXSERVE_SUMS_32(c, 0)
#define VOXSERVE_SUMS_OF_96(c) VOXSERVE_SUMS_32(c, 0), VOXSERVE_SUMS_16(c, 32)
#define VOXSERVE_SUMS_OF_128(c) VOXSERVE_SUMS_64(c, 0)
#define VOXSERVE_SUMS_OF_136(c) VOXSERVE_SUMS_64(c, 0), VOXSERVE_SUMS_4(c, 64)
#define VOXSERVE_SUMS_OF_144(c) VOXSERVE_SUMS_64(c, 0), VOXSERVE_SUMS_8(c, 64)
#define VOXSERVE_SUMS_OF_160(c) VOXSERVE_SUMS_64(c, 0), VOXSERVE_SUMS_16(c, 64)
#define VOXSERVE_SUMS_OF_192(c) VOXSERVE_SUMS_64(c, 0), VOXSERVE_SUMS_32(c, 64)
#define VOXSERVE_SUMS_OF_208(c) VOXSERVE_SUMS_64(c, 0), VOXSERVE_SUMS_32(c, 64), VOXSERVE_SUMS_8(c, 96)
#define VOXSERVE_SUMS_OF_256(c) VOXSERVE_SUMS_64(c, 0), VOXSERVE_SUMS_64(c, 64)
#define VOXSERVE_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define VOXSERVE_NAMES_16 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VOXSERVE_NAMES_32 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define VOXSERVE_NAMES_48 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define VOXSERVE_NAMES_64 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define VOXSERVE_NAMES_80 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define VOXSERVE_NAMES_96 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define VOXSERVE_NAMES_112 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on

// VOXSERVE_DEFINE_PRODUCT defines MultiplyAddGroup for n = `columns`, once with float32 sums and once with int32 sums.
// Its parameters are the operand names of the sums, of a, of b and of `adds`, and the list of sums as asm operands. In
// MultiplyAddGroup, T is the type of A; a and b are descriptors (SwizzledMatrix). If `adds` is 0, the function computes
// D = A B and ignores the old values of d.
#define VOXSERVE_PRODUCT(shape, types, names, a_name, b_name, adds_name, rest)                      \
  "{\n"                                                                                             \
  ".reg .pred adds;\n"                                                                              \
  "setp.ne.b32 adds, " adds_name                                                                    \
  ", 0;\n"                                                                                          \
  "wgmma.mma_async.sync.aligned." shape "." types " {" names "}, " a_name ", " b_name ", adds" rest \
  ";\n"                                                                                             \
  "}\n"
#define VOXSERVE_DEFINE_PRODUCT(columns, names, a_name, b_name, adds_name, sums)                                     \
  template <typename T>                                                                                              \
  __device__ void MultiplyAddGroup(float(&d)[(columns) / 2], uint64_t a, uint64_t b, int32_t adds = 1) {             \
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);                                    \
    if constexpr (std::is_same_v<T, __half>) {                                                                       \
      asm volatile(                                                                                                  \
          VOXSERVE_PRODUCT("m64n" #columns "k16", "f32.f16.f16", names, a_name, b_name, adds_name, ", 1, 1, 0, 0")   \
          : sums("+f")                                                                                               \
          : "l"(a), "l"(b), "r"(adds));                                                                              \
    } else {                                                                                                         \
      asm volatile(                                                                                                  \
          VOXSERVE_PRODUCT("m64n" #columns "k16", "f32.bf16.bf16", names, a_name, b_name, adds_name, ", 1, 1, 0, 0") \
          : sums("+f")                                                                                               \
          : "l"(a), "l"(b), "r"(adds));                                                                              \
    }                                                                                                                \
  }                                                                                                                  \
  template <typename T>                                                                                              \
  __device__ void MultiplyAddGroup(int32_t(&d)[(columns) / 2], uint64_t a, uint64_t b, int32_t adds = 1) {           \
    static_assert(std::is_same_v<T, uint8_t> || std::is_same_v<T, int8_t>);                                          \
    if constexpr (std::is_same_v<T, uint8_t>) {                                                                      \
      asm volatile(VOXSERVE_PRODUCT("m64n" #columns "k32", "s32.u8.s8", names, a_name, b_name, adds_name, "")        \
                   : sums("+r")                                                                                      \
                   : "l"(a), "l"(b), "r"(adds));                                                                     \
    } else {                                                                                                         \
      asm volatile(VOXSERVE_PRODUCT("m64n" #columns "k32", "s32.s8.s8", names, a_name, b_name, adds_name, "")        \
                   : sums("+r")                                                                                      \
                   : "l"(a), "l"(b), "r"(adds));                                                                     \
    }                                                                                                                \
  }

VOXSERVE_DEFINE_PRODUCT(32, VOXSERVE_NAMES_0, "%16", "%17", "%18", VOXSERVE_SUMS_OF_32)
VOXSERVE_DEFINE_PRODUCT(64, VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16, "%32", "%33", "%34", VOXSERVE_SUMS_OF_64)
VOXSERVE_DEFINE_PRODUCT(96, VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32, "%48", "%49", "%50",
                        VOXSERVE_SUMS_OF_96)
VOXSERVE_DEFINE_PRODUCT(128, VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48,
                        "%64", "%65", "%66", VOXSERVE_SUMS_OF_128)
VOXSERVE_DEFINE_PRODUCT(136,
                        VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48
                                         ", %64, %65, %66, %67",
                        "%68", "%69", "%70", VOXSERVE_SUMS_OF_136)
VOXSERVE_DEFINE_PRODUCT(144,
                        VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48
                                         ", %64, %65, %66, %67, %68, %69, %70, %71",
                        "%72", "%73", "%74", VOXSERVE_SUMS_OF_144)
VOXSERVE_DEFINE_PRODUCT(160,
                        VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48
                                         ", " VOXSERVE_NAMES_64,
                        "%80", "%81", "%82", VOXSERVE_SUMS_OF_160)
VOXSERVE_DEFINE_PRODUCT(208,
                        VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48
                                         ", " VOXSERVE_NAMES_64 ", " VOXSERVE_NAMES_80
                                         ", %96, %97, %98, %99, %100, %101, %102, %103",
                        "%104", "%105", "%106", VOXSERVE_SUMS_OF_208)
VOXSERVE_DEFINE_PRODUCT(256,
                        VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48
                                         ", " VOXSERVE_NAMES_64 ", " VOXSERVE_NAMES_80 ", " VOXSERVE_NAMES_96
                                         ", " VOXSERVE_NAMES_112,
                        "%128", "%129", "%130", VOXSERVE_SUMS_OF_256)

// VOXSERVE_DEFINE_REGISTER_PRODUCT defines the function `name` for n = `columns` with A in registers, whose operand
// names are a_names. is_transposed: 0: b is a SwizzledMatrix, 1: a TransposedMatrix. Both may be a PlainMatrix.
#define VOXSERVE_DEFINE_REGISTER_PRODUCT(name, columns, names, a_names, b_name, adds_name, is_transposed, sums)        \
  template <typename T>                                                                                                \
  __device__ void name(float(&d)[(columns) / 2], const uint32_t(&a)[4], uint64_t b, int32_t adds = 1) {                \
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);                                      \
    if constexpr (std::is_same_v<T, __half>) {                                                                         \
      asm volatile(VOXSERVE_PRODUCT("m64n" #columns "k16", "f32.f16.f16", names, "{" a_names "}", b_name, adds_name,   \
                                    ", 1, 1, " #is_transposed)                                                         \
                   : sums("+f")                                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                                   \
    } else {                                                                                                           \
      asm volatile(VOXSERVE_PRODUCT("m64n" #columns "k16", "f32.bf16.bf16", names, "{" a_names "}", b_name, adds_name, \
                                    ", 1, 1, " #is_transposed)                                                         \
                   : sums("+f")                                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                                   \
    }                                                                                                                  \
  }

VOXSERVE_DEFINE_REGISTER_PRODUCT(MultiplyAddTransposedGroup, 8, "%0, %1, %2, %3", "%4, %5, %6, %7", "%8", "%9", 1,
                                 VOXSERVE_SUMS_OF_8)
VOXSERVE_DEFINE_REGISTER_PRODUCT(MultiplyAddTransposedGroup, 24, "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11",
                                 "%12, %13, %14, %15", "%16", "%17", 1, VOXSERVE_SUMS_OF_24)
VOXSERVE_DEFINE_REGISTER_PRODUCT(MultiplyAddGroup, 32, VOXSERVE_NAMES_0, "%16, %17, %18, %19", "%20", "%21", 0,
                                 VOXSERVE_SUMS_OF_32)
VOXSERVE_DEFINE_REGISTER_PRODUCT(MultiplyAddGroup, 64, VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16, "%32, %33, %34, %35",
                                 "%36", "%37", 0, VOXSERVE_SUMS_OF_64)
VOXSERVE_DEFINE_REGISTER_PRODUCT(MultiplyAddGroup, 96, VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32,
                                 "%48, %49, %50, %51", "%52", "%53", 0, VOXSERVE_SUMS_OF_96)
VOXSERVE_DEFINE_REGISTER_PRODUCT(MultiplyAddGroup, 128,
                                 VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48,
                                 "%64, %65, %66, %67", "%68", "%69", 0, VOXSERVE_SUMS_OF_128)
VOXSERVE_DEFINE_REGISTER_PRODUCT(MultiplyAddGroup, 192,
                                 VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48
                                                  ", " VOXSERVE_NAMES_64 ", " VOXSERVE_NAMES_80,
                                 "%96, %97, %98, %99", "%100", "%101", 0, VOXSERVE_SUMS_OF_192)
VOXSERVE_DEFINE_REGISTER_PRODUCT(MultiplyAddGroup, 256,
                                 VOXSERVE_NAMES_0 ", " VOXSERVE_NAMES_16 ", " VOXSERVE_NAMES_32 ", " VOXSERVE_NAMES_48
                                                  ", " VOXSERVE_NAMES_64 ", " VOXSERVE_NAMES_80 ", " VOXSERVE_NAMES_96
                                                  ", " VOXSERVE_NAMES_112,
                                 "%128, %129, %130, %131", "%132", "%133", 0, VOXSERVE_SUMS_OF_256)

#undef VOXSERVE_DEFINE_REGISTER_PRODUCT
#undef VOXSERVE_DEFINE_PRODUCT
#undef VOXSERVE_PRODUCT
#undef VOXSERVE_SUMS_4
#undef VOXSERVE_SUMS_8
#undef VOXSERVE_SUMS_16
#undef VOXSERVE_SUMS_32
#undef VOXSERVE_SUMS_64
#undef VOXSERVE_SUMS_OF_8
#undef VOXSERVE_SUMS_OF_24
#undef VOXSERVE_SUMS_OF_32
#undef VOXSERVE_SUMS_OF_64
#undef VOXSERVE_SUMS_OF_96
#undef VOXSERVE_SUMS_OF_128
#undef VOXSERVE_SUMS_OF_136
#undef VOXSERVE_SUMS_OF_144
#undef VOXSERVE_SUMS_OF_160
#undef VOXSERVE_SUMS_OF_192
#undef VOXSERVE_SUMS_OF_208
#undef VOXSERVE_SUMS_OF_256
#undef VOXSERVE_NAMES_0
#undef VOXSERVE_NAMES_16
#undef VOXSERVE_NAMES_32
#undef VOXSERVE_NAMES_48
#undef VOXSERVE_NAMES_64
#undef VOXSERVE_NAMES_80
#undef VOXSERVE_NAMES_96
#undef VOXSERVE_NAMES_112

#endif

}  // namespace voxserve::kernels::cuda
