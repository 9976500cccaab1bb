#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <utility>

#include "kernels/gemm_cuda.h"
#include "kernels/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

// No kernel of cuBLASLt gains from more.
constexpr uint32_t kMaxAlignmentBytes = 16;

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

uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  return static_cast<uint32_t>(std::min<uintptr_t>(address & (~address + 1), kMaxAlignmentBytes));
}

// What the choice of an algorithm may depend on.
struct FusedKey {
  DType dtype, out_dtype;
  bool tf32, bias, relu, residual;
  int64_t m, n, k;  // m rounded up to a power of two
  int64_t a_pitch, b_pitch, residual_pitch, d_pitch;
  uint32_t a_alignment, b_alignment, residual_alignment, d_alignment;

  auto operator<=>(const FusedKey&) const = default;
};

struct FusedAlgorithm {
  bool exists = false;
  cublasLtMatmulAlgo_t algorithm = {};
};

}  // namespace

struct Gemm::Impl {
  ~Impl() {
    if (cublas != nullptr) cublasDestroy(cublas);
    if (cublaslt != nullptr) cublasLtDestroy(cublaslt);
  }

  cublasComputeType_t ComputeType(DType dtype) const {
    return dtype == DType::kFloat32 && allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  }

  cudaStream_t stream = nullptr;
  void* workspace = nullptr;  // of both libraries: their kernels run one after the other
  bool allow_tf32 = false;
  cublasHandle_t cublas = nullptr;
  cublasLtHandle_t cublaslt = nullptr;
  std::map<FusedKey, FusedAlgorithm> algorithms;
};

namespace {

// A fused product as cuBLASLt describes it. Row-major matrices are column-major transposed ones, so it computes
// D^T [n, m] = B^T [n, k] A^T [k, m] on the same memory, and its "A" is our B.
struct FusedDescription {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, residual, d;

  cudaError_t Init(const FusedMultiplyParams& params, int64_t m, cublasComputeType_t compute_type) {
    const cudaDataType_t type = DataTypeOf(params.dtype), out_type = DataTypeOf(params.out_dtype);
    const auto rows = static_cast<uint64_t>(m), n = static_cast<uint64_t>(params.n),
               k = static_cast<uint64_t>(params.k);
    const int64_t residual_pitch = params.residual == nullptr ? params.d_pitch : params.residual_pitch;
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatrixLayoutInit(&b, type, n, k, params.b_pitch));
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatrixLayoutInit(&a, type, k, rows, params.a_pitch));
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatrixLayoutInit(&residual, out_type, n, rows, residual_pitch));
    VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatrixLayoutInit(&d, out_type, n, rows, params.d_pitch));
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
};

// The library's first choice for a product of key.m rows. Reductions in the output's type are ruled out.
cudaError_t ChooseAlgorithm(cublasLtHandle_t cublaslt, const FusedMultiplyParams& params, const FusedKey& key,
                            cublasComputeType_t compute_type, FusedAlgorithm* chosen) {
  FusedDescription description;
  VOXSERVE_RETURN_IF_CUDA(description.Init(params, key.m, compute_type));
  cublasLtMatmulPreferenceOpaque_t preference;
  VOXSERVE_RETURN_IF_CUBLAS(cublasLtMatmulPreferenceInit(&preference));
  const auto set = [&preference](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return CudaErrorOf(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
  };
  VOXSERVE_RETURN_IF_CUDA(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{Gemm::kWorkspaceBytes}));
  VOXSERVE_RETURN_IF_CUDA(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                              uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
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

}  // namespace

Gemm::Gemm(Impl* impl) : impl_(impl, [](Impl* owned) { delete owned; }) {}
Gemm::~Gemm() = default;

cudaError_t Gemm::Create(cudaStream_t stream, void* workspace, std::unique_ptr<Gemm>* gemm) {
  auto created = std::unique_ptr<Gemm>(new Gemm(new Impl));
  Impl& impl = *created->impl_;
  impl.stream = stream;
  impl.workspace = workspace;
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
cudaStream_t Gemm::stream() const { return impl_->stream; }

cudaError_t Gemm::Multiply(const MultiplyParams& params) {
  if (params.m == 0 || params.n == 0 || params.count == 0) return cudaSuccess;
  if (!AreSizesValid(params.m, params.n, params.k) || !AreTypesValid(params.dtype, params.out_dtype)) {
    return cudaErrorInvalidValue;
  }
  const NvtxRange range("Multiply");
  const float alpha = 1, beta = params.accumulate ? 1 : 0;
  const cudaDataType_t type = DataTypeOf(params.dtype), out_type = DataTypeOf(params.out_dtype);
  const cublasComputeType_t compute_type = impl_->ComputeType(params.dtype);
  // Column-major: C^T [n, m] = B^T [n, k] A^T [k, m].
  if (params.count == 1) {
    VOXSERVE_RETURN_IF_CUBLAS(cublasGemmEx_64(
        impl_->cublas, CUBLAS_OP_N, CUBLAS_OP_N, params.n, params.m, params.k, &alpha, params.b, type, params.b_pitch,
        params.a, type, params.a_pitch, &beta, params.c, out_type, params.c_pitch, compute_type, CUBLAS_GEMM_DEFAULT));
  } else {
    VOXSERVE_RETURN_IF_CUBLAS(cublasGemmStridedBatchedEx_64(
        impl_->cublas, CUBLAS_OP_N, CUBLAS_OP_N, params.n, params.m, params.k, &alpha, params.b, type, params.b_pitch,
        params.b_stride, params.a, type, params.a_pitch, params.a_stride, &beta, params.c, out_type, params.c_pitch,
        params.c_stride, params.count, compute_type, CUBLAS_GEMM_DEFAULT));
  }
  return LaunchStatus(impl_->stream);
}

cudaError_t Gemm::MultiplyFused(const FusedMultiplyParams& params) {
  if (params.m == 0 || params.n == 0) return cudaSuccess;
  if (!AreSizesValid(params.m, params.n, params.k) || !AreTypesValid(params.dtype, params.out_dtype)) {
    return cudaErrorInvalidValue;
  }
  // Epilogues read the bias in whole words.
  if (params.bias != nullptr && AlignmentOf(params.bias) < kMaxAlignmentBytes) return cudaErrorNotSupported;
  const NvtxRange range("MultiplyFused");
  const bool has_residual = params.residual != nullptr;
  const cublasComputeType_t compute_type = impl_->ComputeType(params.dtype);
  const FusedKey key{.dtype = params.dtype,
                     .out_dtype = params.out_dtype,
                     .tf32 = compute_type == CUBLAS_COMPUTE_32F_FAST_TF32,
                     .bias = params.bias != nullptr,
                     .relu = params.relu,
                     .residual = has_residual,
                     .m = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(params.m))),
                     .n = params.n,
                     .k = params.k,
                     .a_pitch = params.a_pitch,
                     .b_pitch = params.b_pitch,
                     .residual_pitch = has_residual ? params.residual_pitch : params.d_pitch,
                     .d_pitch = params.d_pitch,
                     .a_alignment = AlignmentOf(params.a),
                     .b_alignment = AlignmentOf(params.b),
                     .residual_alignment = AlignmentOf(has_residual ? params.residual : params.d),
                     .d_alignment = AlignmentOf(params.d)};
  auto chosen = impl_->algorithms.find(key);
  if (chosen == impl_->algorithms.end()) {
    FusedAlgorithm algorithm;
    VOXSERVE_RETURN_IF_CUDA(ChooseAlgorithm(impl_->cublaslt, params, key, compute_type, &algorithm));
    chosen = impl_->algorithms.emplace(key, algorithm).first;
  }
  if (!chosen->second.exists) return cudaErrorNotSupported;

  FusedDescription description;
  VOXSERVE_RETURN_IF_CUDA(description.Init(params, params.m, compute_type));
  const float alpha = 1, beta = has_residual ? 1 : 0;
  const cublasStatus_t status =
      cublasLtMatmul(impl_->cublaslt, &description.product, &alpha, params.b, &description.b, params.a, &description.a,
                     &beta, has_residual ? params.residual : params.d, &description.residual, params.d, &description.d,
                     &chosen->second.algorithm, impl_->workspace, kWorkspaceBytes, impl_->stream);
  // The algorithm was chosen for more rows than these; it refuses before it launches.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return cudaErrorNotSupported;
  VOXSERVE_RETURN_IF_CUBLAS(status);
  return LaunchStatus(impl_->stream);
}

}  // namespace voxserve::kernels::cuda
