#pragma once

// This header wraps Hopper's tensor core instructions of warp groups (wgmma) with the first factor in registers, so
// that the result of one product can be a factor of the next one. warp_group_products.cuh has those with both factors
// in shared memory, and says how the sums and the second factor are stored. The caller guards the code by
// VOXSERVE_HAS_WARP_GROUP_PRODUCTS. Only .cu files include this header.
//
// A product (MultiplyAddGroup) is D [64, n] += A [64, 16] B [16, n] of 16-bit values, with float32 sums. Lane 4 g + t
// of warp w holds in a[0] the values of A at (16 w + g, 2 t) and (.., 2 t + 1), in a[1] those at (16 w + g + 8, the
// same columns), in a[2] those at (16 w + g, 2 t + 8) and (.., 2 t + 9), and in a[3] those at (16 w + g + 8, these
// columns). So the sums d[8 s .. 8 s + 7] of 64 columns, rounded to 16 bits, are A of step s (RoundToFactors).
//
// The registers of A must not change until a wait has ended the series of products (WaitForProducts).

#include "kernels/core/warp_group_products.cuh"

namespace voxserve::kernels::cuda {

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

// clang-format off
// Operand lists of the instructions, as in warp_group_products.cuh.
#define VOXSERVE_SUMS_8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
                           "+f"(d[i + 6]), "+f"(d[i + 7])
#define VOXSERVE_SUMS_16(i) VOXSERVE_SUMS_8(i), VOXSERVE_SUMS_8(i + 8)
#define VOXSERVE_SUMS_32(i) VOXSERVE_SUMS_16(i), VOXSERVE_SUMS_16(i + 16)
#define VOXSERVE_SUMS_64(i) VOXSERVE_SUMS_32(i), VOXSERVE_SUMS_32(i + 32)
#define VOXSERVE_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define VOXSERVE_NAMES_32 VOXSERVE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define VOXSERVE_NAMES_48 VOXSERVE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define VOXSERVE_NAMES_64 VOXSERVE_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define VOXSERVE_NAMES_96 VOXSERVE_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
                          ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define VOXSERVE_NAMES_128 VOXSERVE_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
                           ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
// clang-format on

// VOXSERVE_DEFINE_PRODUCT defines MultiplyAddGroup for n = `columns`. Its parameters are the names of the sums, of A's
// registers, of b and of `adds`, and the list of sums as asm operands. In MultiplyAddGroup, T is the type of A and B,
// and b is a descriptor (SwizzledMatrix). If `adds` is 0, the function computes D = A B and ignores the old values of
// d.
#define VOXSERVE_PRODUCT(columns, types, names, a_names, b_name, adds_name)                        \
  "{\n"                                                                                            \
  ".reg .pred adds;\n"                                                                             \
  "setp.ne.b32 adds, " adds_name                                                                   \
  ", 0;\n"                                                                                         \
  "wgmma.mma_async.sync.aligned.m64n" #columns "k16." types " {" names "}, {" a_names "}, " b_name \
  ", adds, 1, 1, 0;\n"                                                                             \
  "}\n"
#define VOXSERVE_DEFINE_PRODUCT(columns, names, a_names, b_name, adds_name, ...)                                    \
  template <typename T>                                                                                             \
  __device__ void MultiplyAddGroup(float(&d)[(columns) / 2], const uint32_t(&a)[4], uint64_t b, int32_t adds = 1) { \
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);                                   \
    if constexpr (std::is_same_v<T, __half>) {                                                                      \
      asm volatile(VOXSERVE_PRODUCT(columns, "f32.f16.f16", names, a_names, b_name, adds_name)                      \
                   : __VA_ARGS__                                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                                \
    } else {                                                                                                        \
      asm volatile(VOXSERVE_PRODUCT(columns, "f32.bf16.bf16", names, a_names, b_name, adds_name)                    \
                   : __VA_ARGS__                                                                                    \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                                \
    }                                                                                                               \
  }

VOXSERVE_DEFINE_PRODUCT(32, VOXSERVE_NAMES_16, "%16, %17, %18, %19", "%20", "%21", VOXSERVE_SUMS_16(0))
VOXSERVE_DEFINE_PRODUCT(64, VOXSERVE_NAMES_32, "%32, %33, %34, %35", "%36", "%37", VOXSERVE_SUMS_32(0))
VOXSERVE_DEFINE_PRODUCT(96, VOXSERVE_NAMES_48, "%48, %49, %50, %51", "%52", "%53", VOXSERVE_SUMS_32(0),
                        VOXSERVE_SUMS_16(32))
VOXSERVE_DEFINE_PRODUCT(128, VOXSERVE_NAMES_64, "%64, %65, %66, %67", "%68", "%69", VOXSERVE_SUMS_64(0))
VOXSERVE_DEFINE_PRODUCT(192, VOXSERVE_NAMES_96, "%96, %97, %98, %99", "%100", "%101", VOXSERVE_SUMS_64(0),
                        VOXSERVE_SUMS_32(64))
VOXSERVE_DEFINE_PRODUCT(256, VOXSERVE_NAMES_128, "%128, %129, %130, %131", "%132", "%133", VOXSERVE_SUMS_64(0),
                        VOXSERVE_SUMS_64(64))

#undef VOXSERVE_DEFINE_PRODUCT
#undef VOXSERVE_PRODUCT
#undef VOXSERVE_SUMS_8
#undef VOXSERVE_SUMS_16
#undef VOXSERVE_SUMS_32
#undef VOXSERVE_SUMS_64
#undef VOXSERVE_NAMES_16
#undef VOXSERVE_NAMES_32
#undef VOXSERVE_NAMES_48
#undef VOXSERVE_NAMES_64
#undef VOXSERVE_NAMES_96
#undef VOXSERVE_NAMES_128

#endif

}  // namespace voxserve::kernels::cuda
