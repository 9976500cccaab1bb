#pragma once

// Dense matrix products on a GPU, by cuBLAS and cuBLASLt: row-major C [m, n] = A [m, k] B [k, n] (+ C), of float32,
// float16 or bfloat16, always summed in float32.
//
// A Gemm belongs to one execution context: it is bound to one stream and to a workspace on the device, and is not
// thread-safe. Which algorithm a product gets depends on its shape, layout and types alone, never on what ran before,
// so results are the same bytes in every run. The choice is made once a process for each shape, with the rows rounded
// up (RoundedRows): a convolution's products have other numbers of rows in every scan, and to choose anew for each
// takes longer than the products.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels::cuda {

// `count` products of one shape; the i-th's matrices lie i strides further on.
struct MultiplyParams {
  ConstRows a;              // [m, k]
  ConstRows b;              // [k, n], of A's type
  Rows c;                   // [m, n], of A's type or float32
  bool accumulate = false;  // add to C instead of overwriting it
  int64_t count = 1;
  int64_t a_stride = 0;  // values from a matrix to the next, as for b and c
  int64_t b_stride = 0;
  int64_t c_stride = 0;
};
static_assert(std::is_trivially_copyable_v<MultiplyParams>);

// D = activation(A B + residual + bias), in one launch.
struct FusedMultiplyParams {
  ConstRows a;                 // [m, k]
  ConstRows b;                 // [k, n], of A's type
  const void* bias = nullptr;  // [n] of D's type; null: none
  ConstRows residual;          // [m, n] of D's type; null data: none; may be D
  bool relu = false;
  Rows d;  // [m, n], of A's type or float32
};
static_assert(std::is_trivially_copyable_v<FusedMultiplyParams>);

class Gemm {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // workspace: as SetWorkspace has it; null: SetWorkspace follows before the first product. The stream outlives the
  // Gemm. Allocates what the libraries keep for a handle, and may wait for the device.
  static cudaError_t Create(cudaStream_t stream, void* workspace, std::unique_ptr<Gemm>* gemm);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // workspace: kWorkspaceBytes on the stream's device, 256-byte aligned; it outlives the Gemm.
  cudaError_t SetWorkspace(void* workspace);

  // Whether float32 products may round their factors to TensorFloat-32. False at first.
  void set_allow_tf32(bool allow);

  // Whether an algorithm is chosen without regard to the number of rows and of products, and sums nothing in parts:
  // then a row's result does not depend on which others it is multiplied with. False at first.
  void set_deterministic(bool is_deterministic);

  cudaStream_t stream() const;

  // cudaErrorInvalidValue where k is 0 and C has values.
  cudaError_t Multiply(const MultiplyParams& params);

  // Chooses the algorithm, and runs the product where its kernel has not run on the device: CUDA loads a kernel's code
  // then, which takes milliseconds.
  cudaError_t Prepare(const MultiplyParams& params);

  // Products whose rows round up to the same number run by the same algorithm: 1, 2, ... 8, 10, 12, 14, 16, 20, ...,
  // four numbers an octave.
  static int64_t RoundedRows(int64_t rows);

  // cudaErrorNotSupported, with nothing launched, where cuBLASLt has no algorithm for these layouts. Rows are rounded
  // up to a power of two.
  cudaError_t MultiplyFused(const FusedMultiplyParams& params);

 private:
  struct Impl;
  explicit Gemm(Impl* impl);

  std::unique_ptr<Impl, void (*)(Impl*)> impl_;
};

}  // namespace voxserve::kernels::cuda
