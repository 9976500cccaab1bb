#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <string>
#include <utility>

#include "kernels/core/gemm_cuda.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

// No kernel of cuBLASLt gains from more.
constexpr uint32_t kMaxAlignmentBytes = 16;

// For which an algorithm is chosen that has to serve every number of rows.
constexpr int64_t kDeterministicRows = 16384;

cudaError_t CudaErrorOf(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return cudaSuccess;
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return cudaErrorInitializationError;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return cudaErrorMemoryAllocation;
    case CUBLAS_STATUS_INVALID_VALUE:
      return cudaErrorInvalidValue;
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return cudaErrorLaunchFailure;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return cudaErrorNotSupported;
    default:
      // The library failed, not the device, as cudaErrorUnknown would say: a fault of the device's own is sticky, and
      // comes up at the next launch.
      return cudaErrorInvalidResourceHandle;
  }
}

#define VOXSERVE_RETURN_IF_CUBLAS(expression) VOXSERVE_RETURN_IF_CUDA(CudaErrorOf(expression))

// Valid for dtypes that IsFeatureType.
cudaDataType_t DataTypeOf(DType dtype) {
  if (dtype == DType::kFloat16) return CUDA_R_16F;
  if (dtype == DType::kBfloat16) return CUDA_R_16BF;
  return CUDA_R_32F;
}

bool AreTypesValid(DType dtype, DType out_dtype) {
  const bool is_feature = dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBfloat16;
  return is_feature && (out_dtype == dtype || out_dtype == DType::kFloat32);
}

bool AreSizesValid(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  return m > 0 && n > 0 && k > 0 && m <= kMax && n <= kMax && k <= kMax;
}

uint32_t AlignmentOf(uint64_t bits) {
  return static_cast<uint32_t>(std::min<uint64_t>(bits & (~bits + 1), kMaxAlignmentBytes));
}
uint32_t AlignmentOf(const void* pointer) { return AlignmentOf(reinterpret_cast<uintptr_t>(pointer)); }
// Of every row of every matrix.
uint32_t AlignmentOf(const void* pointer, int64_t pitch_bytes, int64_t stride_bytes) {
  return AlignmentOf(reinterpret_cast<uintptr_t>(pointer) | static_cast<uint64_t>(pitch_bytes | stride_bytes));
}

// `count` products D = activation(A B + residual + bias) of one shape.
struct Product {
  FusedMultiplyParams of_one;
  int64_t count = 1;
  int64_t a_stride = 0, b_stride = 0, d_stride = 0;  // values; the residual's is D's
  int64_t rounded_m = 0;                             // the rows that an algorithm is chosen for
};

// What the choice of an algorithm depends on.
struct ProductKey {
  int device;
  DType dtype, out_dtype;
  bool tf32, bias, relu, residual, deterministic;
  int64_t m, n, k, count;  // m rounded up
  uint32_t a_alignment, b_alignment, residual_alignment, d_alignment;

  auto operator<=>(const ProductKey&) const = default;
};

struct Algorithm {
  bool exists = false;
  cublasLtMatmulAlgo_t algorithm = {};
};

// The choices that were made in this process. cuBLAS makes its own anew for every number of rows that it has not met,
// which every scan brings some hundred of, and takes some 50 us for each.
class AlgorithmTable {
 public:
  std::optional<Algorithm> Find(const ProductKey& key) {
    const std::shared_lock lock(mutex_);
    const auto found = algorithms_.find(key);
    if (found == algorithms_.end()) return std::nullopt;
    return found->second;
  }
  void Add(const ProductKey& key, const Algorithm& algorithm) {
    const std::unique_lock lock(mutex_);
    algorithms_.emplace(key, algorithm);
  }
  // True the first time on a device.
  bool IsFirstRun(int device, const Algorithm& algorithm) {
    std::string bytes(sizeof(algorithm.algorithm), '\0');
    std::memcpy(bytes.data(), &algorithm.algorithm, bytes.size());
    const std::unique_lock lock(mutex_);
    return have_run_.emplace(device, std::move(bytes)).second;
  }

  static AlgorithmTable& OfProcess() {
    static AlgorithmTable& table = *new AlgorithmTable;  // outlives every thread
    return table;
  }

 private:
  std::shared_mutex mutex_;
  std::map<ProductKey, Algorithm> algorithms_;
  std::set<std::pair<int, std::string>> have_run_;
};

// A product as cuBLASLt describes it. Row-major matrices are column-major transposed ones, so it computes
// D^T [n, m] = B^T [n, k] A^T [k, m] on the same memory, and its "A" is our B.
struct Description {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, residual, d;

  cudaError_t Init(const Product& wanted, cublasComputeType_t compute_type) {
    const FusedMultiplyParams& params = wanted.of_one;
    const cudaDataType_t type = DataTypeOf(params.dtype), out_type = DataTypeOf(params.out_dtype);
    const auto rows = static_cast<uint64_t>(params.m), n = static_cast<uint64_t>(params.n),
               k = static_cast<uint64_t>(params.k);
    const int64_t residual_pitch = params.residual == nullptr ? params.d_pitch : params.residual_pitch;
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatrixLayoutInit(&b, type, n, k, params.b_pitch));
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatrixLayoutInit(&a, type, k, rows, params.a_pitch));
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatrixLayoutInit(&residual, out_type, n, rows, residual_pitch));
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatrixLayoutInit(&d, out_type, n, rows, params.d_pitch));
    if (wanted.count > 1) {
      VOXSERVE_RETURN_IF_CUDA(SetCount(b, wanted.count, wanted.b_stride));
      VOXSERVE_RETURN_IF_CUDA(SetCount(a, wanted.count, wanted.a_stride));
      VOXSERVE_RETURN_IF_CUDA(SetCount(residual, wanted.count, wanted.d_stride));
      VOXSERVE_RETURN_IF_CUDA(SetCount(d, wanted.count, wanted.d_stride));
    }
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatmulDescInit(&product, compute_type, CUDA_R_32F));
    const cublasLtEpilogue_t epilogue = params.bias == nullptr
                                            ? (params.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT)
                                            : (params.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS);
    VOXSERVE_RETURN_IF_CUBLAS(
        cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    if (params.bias == nullptr) return cudaSuccess;
    return CudaErrorOf(
        cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &params.bias, sizeof(params.bias)));
  }

 private:
  static cudaError_t SetCount(cublasLtMatrixLayoutOpaque_t& layout, int64_t count, int64_t stride) {
    const auto batches = static_cast<int32_t>(count);
    VOXSERVE_RETURN_IF_CUBLAS(
        cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof(batches)));
    return CudaErrorOf(cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                        sizeof(stride)));
  }
};

// The product of the key's rows with nothing between rows and between matrices, so that the choice does not depend on
// who asks first.
Product PackedProduct(const Product& wanted, const ProductKey& key) {
  Product packed = wanted;
  FusedMultiplyParams& params = packed.of_one;
  const int64_t value_bytes = SizeOf(params.dtype), out_bytes = SizeOf(params.out_dtype);
  const auto pitch = [](int64_t channels, int64_t bytes, uint32_t alignment) {
    const int64_t step = std::max<int64_t>(alignment / bytes, 1);
    return (channels + step - 1) / step * step;
  };
  params.m = key.m;
  packed.count = key.count;
  params.a_pitch = pitch(params.k, value_bytes, key.a_alignment);
  params.b_pitch = pitch(params.n, value_bytes, key.b_alignment);
  params.d_pitch = params.residual_pitch =
      pitch(params.n, out_bytes, std::min(key.d_alignment, key.residual_alignment));
  packed.a_stride = params.m * params.a_pitch;
  packed.b_stride = params.k * params.b_pitch;
  packed.d_stride = params.m * params.d_pitch;
  return packed;
}

// The library's first choice. Reductions in the output's type are ruled out.
cudaError_t ChooseAlgorithm(cublasLtHandle_t cublaslt, const Product& wanted, const ProductKey& key,
                            cublasComputeType_t compute_type, Algorithm* chosen) {
  Description description;
  VOXSERVE_RETURN_IF_CUDA(description.Init(PackedProduct(wanted, key), compute_type));
  cublasLtMatmulPreferenceOpaque_t preference;
  VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  const auto set = [&preference](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return CudaErrorOf(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  };
  VOXSERVE_RETURN_IF_CUDA(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{Gemm::kWorkspaceBytes}));
  VOXSERVE_RETURN_IF_CUDA(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                              key.deterministic
                                  ? uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE}
                                  : uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
  VOXSERVE_RETURN_IF_CUDA(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b_alignment));
  VOXSERVE_RETURN_IF_CUDA(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a_alignment));
  VOXSERVE_RETURN_IF_CUDA(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.residual_alignment));
  VOXSERVE_RETURN_IF_CUDA(set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.d_alignment));

  cublasLtMatmulHeuristicResult_t result = {};
  int num_results = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(cublaslt, &description.product, &description.b, &description.a,
                                     &description.residual, &description.d, &preference, 1, &result, &num_results);
  if (status == CUBLAS_STATUS_SUCCESS && num_results > 0 && result.state == CUBLAS_STATUS_SUCCESS) {
    *chosen = {.exists = true, .algorithm = result.algo};
    return cudaSuccess;
  }
  *chosen = {};
  const bool has_none =
      status == CUBLAS_STATUS_SUCCESS || status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
  return has_none ? cudaSuccess : CudaErrorOf(status);
}

Product ProductOf(const MultiplyParams& params) {
  return {.of_one = {.dtype = params.dtype,
                     .out_dtype = params.out_dtype,
                     .m = params.m,
                     .n = params.n,
                     .k = params.k,
                     .a = params.a,
                     .a_pitch = params.a_pitch,
                     .b = params.b,
                     .b_pitch = params.b_pitch,
                     .residual = params.accumulate ? params.c : nullptr,
                     .residual_pitch = params.c_pitch,
                     .d = params.c,
                     .d_pitch = params.c_pitch},
          .count = params.count,
          .a_stride = params.a_stride,
          .b_stride = params.b_stride,
          .d_stride = params.c_stride,
          .rounded_m = Gemm::RoundedRows(params.m)};
}

}  // namespace

struct Gemm::Impl {
  ~Impl() {
    if (cublas != nullptr) cublasDestroy(cublas);
    if (cublaslt != nullptr) cublasLtDestroy(cublaslt);
  }

  cublasComputeType_t ComputeType(DType dtype) const {
    return dtype == DType::kFloat32 && allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  }
  cudaError_t Choose(const Product& wanted, Algorithm* chosen) const;
  // cudaErrorNotSupported, with nothing launched, where cuBLASLt has no algorithm.
  cudaError_t Run(const Product& wanted, const Algorithm& algorithm) const;
  // By cuBLAS, which chooses by itself.
  cudaError_t RunByCublas(const MultiplyParams& params) const;

  int device = 0;
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;  // of both libraries: their kernels run one after the other
  bool allow_tf32 = false;
  bool is_deterministic = false;
  cublasHandle_t cublas = nullptr;
  cublasLtHandle_t cublaslt = nullptr;
};

cudaError_t Gemm::Impl::Choose(const Product& wanted, Algorithm* chosen) const {
  const FusedMultiplyParams& params = wanted.of_one;
  const int64_t value_bytes = SizeOf(params.dtype), out_bytes = SizeOf(params.out_dtype);
  // The strides of a single product are of no matter.
  const int64_t stride_bytes = wanted.count > 1 ? value_bytes : 0, out_stride_bytes = wanted.count > 1 ? out_bytes : 0;
  const cublasComputeType_t compute_type = ComputeType(params.dtype);
  const bool has_residual = params.residual != nullptr;
  ProductKey key{.device = device,
                 .dtype = params.dtype,
                 .out_dtype = params.out_dtype,
                 .tf32 = compute_type == CUBLAS_COMPUTE_32F_FAST_TF32,
                 .bias = params.bias != nullptr,
                 .relu = params.relu,
                 .residual = has_residual,
                 .deterministic = is_deterministic,
                 .m = wanted.rounded_m,
                 .n = params.n,
                 .k = params.k,
                 .count = wanted.count};
  key.a_alignment = AlignmentOf(params.a, params.a_pitch * value_bytes, wanted.a_stride * stride_bytes);
  key.b_alignment = AlignmentOf(params.b, params.b_pitch * value_bytes, wanted.b_stride * stride_bytes);
  key.d_alignment = AlignmentOf(params.d, params.d_pitch * out_bytes, wanted.d_stride * out_stride_bytes);
  key.residual_alignment =
      has_residual ? AlignmentOf(params.residual, params.residual_pitch * out_bytes, wanted.d_stride * out_stride_bytes)
                   : key.d_alignment;
  if (is_deterministic) {
    key.m = kDeterministicRows;
    key.count = 1;
    // Where a group begins depends on those before it. Whole rows are aligned all the same.
    key.a_alignment = AlignmentOf(nullptr, params.a_pitch * value_bytes, 0);
    key.b_alignment = AlignmentOf(nullptr, params.b_pitch * value_bytes, 0);
    key.d_alignment = AlignmentOf(nullptr, params.d_pitch * out_bytes, 0);
    key.residual_alignment =
        has_residual ? AlignmentOf(nullptr, params.residual_pitch * out_bytes, 0) : key.d_alignment;
  }
  AlgorithmTable& table = AlgorithmTable::OfProcess();
  if (const std::optional<Algorithm> found = table.Find(key)) {
    *chosen = *found;
    return cudaSuccess;
  }
  VOXSERVE_RETURN_IF_CUDA(ChooseAlgorithm(cublaslt, wanted, key, compute_type, chosen));
  table.Add(key, *chosen);
  return cudaSuccess;
}

cudaError_t Gemm::Impl::Run(const Product& wanted, const Algorithm& algorithm) const {
  if (!algorithm.exists) return cudaErrorNotSupported;
  const FusedMultiplyParams& params = wanted.of_one;
  const bool has_residual = params.residual != nullptr;
  Description description;
  VOXSERVE_RETURN_IF_CUDA(description.Init(wanted, ComputeType(params.dtype)));
  const float alpha = 1, beta = has_residual ? 1 : 0;
  const cublasStatus_t status =
      cublasLtMatmul(cublaslt, &description.product, &alpha, params.b, &description.b, params.a, &description.a, &beta,
                     has_residual ? params.residual : params.d, &description.residual, params.d, &description.d,
                     &algorithm.algorithm, workspace, kWorkspaceBytes, stream);
  // The algorithm was chosen for other rows and pitches than these; it refuses before it launches.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return cudaErrorNotSupported;
  VOXSERVE_RETURN_IF_CUBLAS(status);
  return LaunchStatus(stream);
}

cudaError_t Gemm::Impl::RunByCublas(const MultiplyParams& params) const {
  const float alpha = 1, beta = params.accumulate ? 1 : 0;
  const cudaDataType_t type = DataTypeOf(params.dtype), out_type = DataTypeOf(params.out_dtype);
  const cublasComputeType_t compute_type = ComputeType(params.dtype);
  // Column-major: C^T [n, m] = B^T [n, k] A^T [k, m].
  VOXSERVE_RETURN_IF_CUBLAS(cublasGemmStridedBatchedEx_64(
      cublas, CUBLAS_OP_N, CUBLAS_OP_N, params.n, params.m, params.k, &alpha, params.b, type, params.b_pitch,
      params.b_stride, params.a, type, params.a_pitch, params.a_stride, &beta, params.c, out_type, params.c_pitch,
      params.c_stride, params.count, compute_type, CUBLAS_GEMM_DEFAULT));
  return LaunchStatus(stream);
}

Gemm::Gemm(Impl* impl) : impl_(impl, [](Impl* owned) { delete owned; }) {}
Gemm::~Gemm() = default;

cudaError_t Gemm::Create(cudaStream_t stream, void* workspace, std::unique_ptr<Gemm>* gemm) {
  auto created = std::unique_ptr<Gemm>(new Gemm(new Impl));
  Impl& impl = *created->impl_;
  impl.stream = stream;
  impl.workspace = workspace;
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&impl.device));
  VOXSERVE_RETURN_IF_CUBLAS(cublasCreate(&impl.cublas));
  VOXSERVE_RETURN_IF_CUBLAS(cublasLtCreate(&impl.cublaslt));
  // In this order: setting the stream takes a workspace away.
  VOXSERVE_RETURN_IF_CUBLAS(cublasSetStream(impl.cublas, stream));
  VOXSERVE_RETURN_IF_CUBLAS(cublasSetWorkspace(impl.cublas, workspace, kWorkspaceBytes));
  VOXSERVE_RETURN_IF_CUBLAS(cublasSetMathMode(
      impl.cublas, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
  *gemm = std::move(created);
  return cudaSuccess;
}

void Gemm::set_allow_tf32(bool allow) { impl_->allow_tf32 = allow; }
void Gemm::set_deterministic(bool is_deterministic) { impl_->is_deterministic = is_deterministic; }
cudaStream_t Gemm::stream() const { return impl_->stream; }

int64_t Gemm::RoundedRows(int64_t rows) {
  const auto octave = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(rows, 1))));
  const int64_t step = std::max<int64_t>(octave / 4, 1);
  return (rows + step - 1) / step * step;
}

cudaError_t Gemm::Multiply(const MultiplyParams& params) {
  if (params.m == 0 || params.n == 0 || params.count == 0) return cudaSuccess;
  if (!AreSizesValid(params.m, params.n, params.k) || !AreTypesValid(params.dtype, params.out_dtype)) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("Multiply");
  const Product wanted = ProductOf(params);
  Algorithm algorithm;
  VOXSERVE_RETURN_IF_CUDA(impl_->Choose(wanted, &algorithm));
  const cudaError_t error = impl_->Run(wanted, algorithm);
  return error == cudaErrorNotSupported ? impl_->RunByCublas(params) : error;
}

cudaError_t Gemm::Prepare(const MultiplyParams& params) {
  if (params.m == 0 || params.n == 0 || params.count == 0) return cudaSuccess;
  if (!AreSizesValid(params.m, params.n, params.k) || !AreTypesValid(params.dtype, params.out_dtype)) {
    return cudaErrorInvalidValue;
  }
  Algorithm algorithm;
  VOXSERVE_RETURN_IF_CUDA(impl_->Choose(ProductOf(params), &algorithm));
  if (!AlgorithmTable::OfProcess().IsFirstRun(impl_->device, algorithm)) return cudaSuccess;
  return Multiply(params);
}

cudaError_t Gemm::MultiplyFused(const FusedMultiplyParams& params) {
  if (params.m == 0 || params.n == 0) return cudaSuccess;
  if (!AreSizesValid(params.m, params.n, params.k) || !AreTypesValid(params.dtype, params.out_dtype)) {
    return cudaErrorInvalidValue;
  }
  // Epilogues read the bias in whole words.
  if (params.bias != nullptr && AlignmentOf(params.bias) < kMaxAlignmentBytes) return cudaErrorNotSupported;
  const NvtxRange range("MultiplyFused");
  const Product wanted{.of_one = params,
                       .rounded_m = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(params.m)))};
  Algorithm algorithm;
  VOXSERVE_RETURN_IF_CUDA(impl_->Choose(wanted, &algorithm));
  return impl_->Run(wanted, algorithm);
}

}  // namespace voxserve::kernels::cuda
