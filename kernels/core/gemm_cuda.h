#pragma once

// Computes dense matrix products on a GPU with cuBLAS and cuBLASLt: row-major C [m, n] = A [m, k] B [k, n] (+ C) of
// float32, float16 or bfloat16 matrices, always summed in float32.
//
// - Owner: a Gemm belongs to one execution context. It is bound to one stream and one device workspace, and is not
//   thread-safe.
// - Determinism: the algorithm of a product depends only on the product's shape, alignment and types and on the Gemm's
//   settings, never on earlier calls. Results are the same bytes in every run.
// - Cost: the algorithm is chosen once per process and shape, with the number of rows rounded up (RoundedRows). A
//   convolution's products have different numbers of rows in every scan, and a choice for each number would take longer
//   than the products. If cuBLASLt has no algorithm for a product, cuBLAS computes it and chooses by itself.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/core/rows.h"

namespace voxserve::kernels::cuda {

// Multiply computes `count` products of one shape. Each matrix begins one stride after the matrix of the product
// before.
struct MultiplyParams {
  ConstRows a;              // [m, k]
  ConstRows b;              // [k, n] in A's type
  Rows c;                   // [m, n] in A's type or float32
  bool accumulate = false;  // add to C instead of overwriting it
  int64_t count = 1;
  int64_t a_stride = 0;  // values from one matrix to the next, like b_stride and c_stride
  int64_t b_stride = 0;
  int64_t c_stride = 0;
};
static_assert(std::is_trivially_copyable_v<MultiplyParams>);

// MultiplyFused computes D = activation(A B + residual + bias) in one launch. The activation is ReLU or none.
struct FusedMultiplyParams {
  ConstRows a;                 // [m, k]
  ConstRows b;                 // [k, n] in A's type
  const void* bias = nullptr;  // [n] in D's type, 16-byte aligned; null: none
  ConstRows residual;          // [m, n] in D's type; null data: none; may be D
  bool relu = false;
  Rows d;  // [m, n] in A's type or float32
};
static_assert(std::is_trivially_copyable_v<FusedMultiplyParams>);

class Gemm {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // Creates a Gemm for the current device; *gemm is set only on success. `workspace` is described at SetWorkspace; if
  // it is null, SetWorkspace must be called before the first product. The stream must outlive the Gemm. Create
  // allocates the memory that the libraries keep per handle, and may wait for the device. Returns
  // cudaErrorMemoryAllocation if the libraries find no memory, and cudaErrorSharedObjectInitFailed if the libraries
  // themselves are missing.
  static cudaError_t Create(cudaStream_t stream, void* workspace, std::unique_ptr<Gemm>* gemm);
  // Returns the dynamic loader's message if the libraries cannot be loaded, else null. The first call loads them.
  static const char* MissingLibrary();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // workspace: kWorkspaceBytes of memory on the stream's device, 256-byte aligned. It must outlive the Gemm.
  cudaError_t SetWorkspace(void* workspace);

  // Sets whether float32 products may round their factors to TensorFloat-32. The default is false.
  void set_allow_tf32(bool allow);

  // If true, the algorithm is chosen independently of the numbers of rows and of products, and without split sums. The
  // result of a row then does not depend on the other rows of the product. (There is one exception: if cuBLASLt has no
  // such algorithm, cuBLAS chooses one by the real number of rows.) The default is false.
  void set_deterministic(bool is_deterministic);

  cudaStream_t stream() const;

  // Queues the products on the stream. Returns cudaErrorInvalidValue if k is 0 and C has values, if a type is not one
  // of the types above, or if C has 2^31 rows or more.
  cudaError_t Multiply(const MultiplyParams& params);

  // Chooses the algorithm of a product ahead of its first use. If the algorithm has not been prepared on the device
  // yet, also runs the product once, because CUDA loads a kernel's code at its first launch, which takes milliseconds.
  // Errors are those of Multiply.
  cudaError_t Prepare(const MultiplyParams& params);

  // Returns the number of rows for which the algorithm of a product of `rows` rows is chosen: `rows` rounded up to 1,
  // 2, ... 8, 10, 12, 14, 16, 20, ..., four numbers per octave. Products that round up to the same number run the same
  // algorithm.
  static int64_t RoundedRows(int64_t rows);

  // Queues the product on the stream. Returns cudaErrorNotSupported, with nothing launched, if cuBLASLt has no
  // algorithm for these layouts or the bias is not 16-byte aligned; the caller then computes in several launches. Other
  // errors are those of Multiply. The algorithm is chosen for the number of rows rounded up to a power of two.
  cudaError_t MultiplyFused(const FusedMultiplyParams& params);

 private:
  struct Impl;
  explicit Gemm(Impl* impl);

  std::unique_ptr<Impl, void (*)(Impl*)> impl_;
};

}  // namespace voxserve::kernels::cuda
