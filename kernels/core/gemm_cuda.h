#pragma once

// Dense matrix products on a GPU by cuBLAS and cuBLASLt: row-major C [m, n] = A [m, k] B [k, n] (+ C) of float32,
// float16 or bfloat16, always summed in float32.
//
// - Owner: a Gemm belongs to one execution context. It is bound to one stream and one device workspace, and is not
//   thread-safe.
// - Determinism: a product's algorithm depends only on its shape, layout and types, never on earlier calls. Results are
//   the same bytes in every run.
// - Cost: the algorithm is chosen once per process and shape, with the rows rounded up (RoundedRows). A convolution's
//   products have different numbers of rows in every scan, and choosing for each would take longer than the products.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels::cuda {

// `count` products of one shape. From one product to the next, a matrix begins a stride further on.
struct MultiplyParams {
  ConstRows a;              // [m, k]
  ConstRows b;              // [k, n] in A's type
  Rows c;                   // [m, n] in A's type or float32
  bool accumulate = false;  // add to C instead of overwriting it
  int64_t count = 1;
  int64_t a_stride = 0;  // values from one matrix to the next; also for b and c
  int64_t b_stride = 0;
  int64_t c_stride = 0;
};
static_assert(std::is_trivially_copyable_v<MultiplyParams>);

// D = activation(A B + residual + bias), in one launch.
struct FusedMultiplyParams {
  ConstRows a;                 // [m, k]
  ConstRows b;                 // [k, n] in A's type
  const void* bias = nullptr;  // [n] in D's type; null: none
  ConstRows residual;          // [m, n] in D's type; null data: none; may be D
  bool relu = false;
  Rows d;  // [m, n] in A's type or float32
};
static_assert(std::is_trivially_copyable_v<FusedMultiplyParams>);

class Gemm {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // workspace: see SetWorkspace; if null, SetWorkspace must be called before the first product. The stream must outlive
  // the Gemm. Create allocates the memory that the libraries keep per handle, and may wait for the device.
  static cudaError_t Create(cudaStream_t stream, void* workspace, std::unique_ptr<Gemm>* gemm);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // workspace: kWorkspaceBytes on the stream's device, 256-byte aligned; it outlives the Gemm.
  cudaError_t SetWorkspace(void* workspace);

  // Sets whether float32 products may round their factors to TensorFloat-32. The default is false.
  void set_allow_tf32(bool allow);

  // Sets whether the algorithm is chosen independently of the number of rows and of products, and without split sums.
  // If it is, a row's result does not depend on the other rows of the product. The default is false.
  void set_deterministic(bool is_deterministic);

  cudaStream_t stream() const;

  // cudaErrorInvalidValue if k is 0 and C has values.
  cudaError_t Multiply(const MultiplyParams& params);

  // Chooses the algorithm. If its kernel has not run on the device yet, runs the product once: CUDA loads a kernel's
  // code at its first launch, which takes milliseconds.
  cudaError_t Prepare(const MultiplyParams& params);

  // Returns the number of rows that an algorithm is chosen for: 1, 2, ... 8, 10, 12, 14, 16, 20, ..., four numbers per
  // octave. Products that round up to the same number run the same algorithm.
  static int64_t RoundedRows(int64_t rows);

  // cudaErrorNotSupported, with nothing launched, if cuBLASLt has no algorithm for these layouts. The rows are rounded
  // up to a power of two.
  cudaError_t MultiplyFused(const FusedMultiplyParams& params);

 private:
  struct Impl;
  explicit Gemm(Impl* impl);

  std::unique_ptr<Impl, void (*)(Impl*)> impl_;
};

}  // namespace voxserve::kernels::cuda
