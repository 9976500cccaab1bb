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

#include "kernels/core/cublas_cuda.h"
#include "kernels/core/gemm_cuda.h"
#include "kernels/core/launch.cuh"

namespace voxserve::kernels::cuda {
namespace {

// No cuBLASLt kernel gains from a larger alignment.
constexpr uint32_t kMaxAlignmentBytes = 16;

// A deterministic product gets the algorithm that is chosen for this number of rows, however many rows it has.
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
      // The library failed, not the device. cudaErrorUnknown would blame the device, whose own faults are sticky and
      // show up at the next launch anyway.
      return cudaErrorInvalidResourceHandle;
  }
}

#define VOXSERVE_RETURN_IF_CUBLAS(expression) VOXSERVE_RETURN_IF_CUDA(CudaErrorOf(expression))

// The dtype must be float32, float16 or bfloat16.
cudaDataType_t DataTypeOf(DType dtype) {
  if (dtype == DType::kFloat16) return CUDA_R_16F;
  if (dtype == DType::kBfloat16) return CUDA_R_16BF;
  return CUDA_R_32F;
}

// Returns true if the product of A into D can be computed: it has supported types, and at least one row and channel.
bool AreValid(const ConstRows& a, const ConstRows& d) {
  const bool is_feature = a.dtype == DType::kFloat32 || a.dtype == DType::kFloat16 || a.dtype == DType::kBfloat16;
  return is_feature && (d.dtype == a.dtype || d.dtype == DType::kFloat32) && a.channels > 0 && d.channels > 0 &&
         d.capacity > 0 && d.capacity <= std::numeric_limits<int32_t>::max();
}

uint32_t AlignmentOf(uint64_t bits) {
  return static_cast<uint32_t>(std::min<uint64_t>(bits & (~bits + 1), kMaxAlignmentBytes));
}
uint32_t AlignmentOf(const void* pointer) { return AlignmentOf(reinterpret_cast<uintptr_t>(pointer)); }
// Returns the alignment that every row of every matrix has.
uint32_t AlignmentOf(const ConstRows& rows, int64_t stride) {
  return AlignmentOf(reinterpret_cast<uintptr_t>(rows.data) |
                     static_cast<uint64_t>(rows.pitch_bytes() | stride * SizeOf(rows.dtype)));
}

// `count` products D = activation(A B + residual + bias) of one shape.
struct Product {
  FusedMultiplyParams of_one;
  int64_t count = 1;
  int64_t a_stride = 0, b_stride = 0, d_stride = 0;  // values from one matrix to the next; d_stride: the residual's too
  int64_t rounded_m = 0;                             // the algorithm is chosen for this number of rows
};

// The properties of a product that determine its algorithm.
struct ProductKey {
  int device;
  DType dtype, out_dtype;
  bool tf32, bias, relu, residual, deterministic;
  int64_t m, n, k, count;  // m is rounded up
  uint32_t a_alignment, b_alignment, residual_alignment, d_alignment;

  auto operator<=>(const ProductKey&) const = default;
};

struct Algorithm {
  bool exists = false;
  cublasLtMatmulAlgo_t algorithm = {};
};

// The algorithms that this process has chosen so far. cuBLAS itself would choose again for every new number of rows:
// each scan brings about a hundred new ones, and a choice takes some 50 us.
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
  // Returns true if the algorithm has not run on this device before.
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

// A product as cuBLASLt describes it. cuBLASLt's matrices are column-major, and a row-major matrix is its own transpose
// there. So cuBLASLt computes D^T [n, m] = B^T [n, k] A^T [k, m] on the same memory, and its "A" is our B.
struct Description {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t a, b, residual, d;

  cudaError_t Init(const Product& wanted, cublasComputeType_t compute_type) {
    const FusedMultiplyParams& params = wanted.of_one;
    const cudaDataType_t type = DataTypeOf(params.a.dtype), out_type = DataTypeOf(params.d.dtype);
    const auto rows = static_cast<uint64_t>(params.d.capacity), n = static_cast<uint64_t>(params.d.channels),
               k = static_cast<uint64_t>(params.a.channels);
    const int64_t residual_pitch = params.residual.data == nullptr ? params.d.pitch : params.residual.pitch;
    VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasLtMatrixLayoutInit_internal(&b, sizeof(b), type, n, k, params.b.pitch));
    VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasLtMatrixLayoutInit_internal(&a, sizeof(a), type, k, rows, params.a.pitch));
    VOXSERVE_RETURN_IF_CUBLAS(
        Cublas().cublasLtMatrixLayoutInit_internal(&residual, sizeof(residual), out_type, n, rows, residual_pitch));
    VOXSERVE_RETURN_IF_CUBLAS(
        Cublas().cublasLtMatrixLayoutInit_internal(&d, sizeof(d), out_type, n, rows, params.d.pitch));
    if (wanted.count > 1) {
      VOXSERVE_RETURN_IF_CUDA(SetCount(b, wanted.count, wanted.b_stride));
      VOXSERVE_RETURN_IF_CUDA(SetCount(a, wanted.count, wanted.a_stride));
      VOXSERVE_RETURN_IF_CUDA(SetCount(residual, wanted.count, wanted.d_stride));
      VOXSERVE_RETURN_IF_CUDA(SetCount(d, wanted.count, wanted.d_stride));
    }
    VOXSERVE_RETURN_IF_CUBLAS(
        Cublas().cublasLtMatmulDescInit_internal(&product, sizeof(product), compute_type, CUDA_R_32F));
    const cublasLtEpilogue_t epilogue = params.bias == nullptr
                                            ? (params.relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT)
                                            : (params.relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS);
    VOXSERVE_RETURN_IF_CUBLAS(
        Cublas().cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    if (params.bias == nullptr) return cudaSuccess;
    return CudaErrorOf(Cublas().cublasLtMatmulDescSetAttribute(&product, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                                               &params.bias, sizeof(params.bias)));
  }

 private:
  static cudaError_t SetCount(cublasLtMatrixLayoutOpaque_t& layout, int64_t count, int64_t stride) {
    const auto batches = static_cast<int32_t>(count);
    VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                                        &batches, sizeof(batches)));
    return CudaErrorOf(Cublas().cublasLtMatrixLayoutSetAttribute(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                                 &stride, sizeof(stride)));
  }
};

// Returns a product of the key's size without gaps between rows or matrices. The choice must not depend on the pitches
// of the call that happens to come first.
Product PackedProduct(const Product& wanted, const ProductKey& key) {
  Product packed = wanted;
  FusedMultiplyParams& params = packed.of_one;
  const auto pitch = [](int64_t channels, DType dtype, uint32_t alignment) {
    const int64_t step = std::max<int64_t>(alignment / SizeOf(dtype), 1);
    return (channels + step - 1) / step * step;
  };
  params.d.capacity = key.m;
  packed.count = key.count;
  params.a.pitch = pitch(key.k, key.dtype, key.a_alignment);
  params.b.pitch = pitch(key.n, key.dtype, key.b_alignment);
  params.d.pitch = params.residual.pitch =
      pitch(key.n, key.out_dtype, std::min(key.d_alignment, key.residual_alignment));
  packed.a_stride = key.m * params.a.pitch;
  packed.b_stride = key.k * params.b.pitch;
  packed.d_stride = key.m * params.d.pitch;
  return packed;
}

// Chooses the library's first suggestion. Algorithms that reduce in the output's type are excluded.
cudaError_t ChooseAlgorithm(cublasLtHandle_t cublaslt, const Product& wanted, const ProductKey& key,
                            cublasComputeType_t compute_type, Algorithm* chosen) {
  Description description;
  VOXSERVE_RETURN_IF_CUDA(description.Init(PackedProduct(wanted, key), compute_type));
  cublasLtMatmulPreferenceOpaque_t preference;
  VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasLtMatmulPreferenceInit_internal(&preference, sizeof(preference)));
  const auto set = [&preference](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return CudaErrorOf(Cublas().cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)));
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
  const cublasStatus_t status = Cublas().cublasLtMatmulAlgoGetHeuristic(
      cublaslt, &description.product, &description.b, &description.a, &description.residual, &description.d,
      &preference, 1, &result, &num_results);
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
  return {.of_one = {.a = params.a,
                     .b = params.b,
                     .residual = params.accumulate ? ConstRows(params.c) : ConstRows{},
                     .d = params.c},
          .count = params.count,
          .a_stride = params.a_stride,
          .b_stride = params.b_stride,
          .d_stride = params.c_stride,
          .rounded_m = Gemm::RoundedRows(params.c.capacity)};
}

}  // namespace

struct Gemm::Impl {
  ~Impl() {
    if (cublas != nullptr) Cublas().cublasDestroy_v2(cublas);
    if (cublaslt != nullptr) Cublas().cublasLtDestroy(cublaslt);
  }

  cublasComputeType_t ComputeType(DType dtype) const {
    return dtype == DType::kFloat32 && allow_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  }
  cudaError_t Choose(const Product& wanted, Algorithm* chosen) const;
  // Returns cudaErrorNotSupported, and launches nothing, if cuBLASLt has no algorithm for the product.
  cudaError_t Run(const Product& wanted, const Algorithm& algorithm) const;
  // Runs the product with cuBLAS, which chooses its algorithm itself.
  cudaError_t RunByCublas(const MultiplyParams& params) const;

  int device = 0;
  cudaStream_t stream = nullptr;
  void* workspace = nullptr;  // shared by both libraries: their kernels run one after the other
  bool allow_tf32 = false;
  bool is_deterministic = false;
  cublasHandle_t cublas = nullptr;
  cublasLtHandle_t cublaslt = nullptr;
};

cudaError_t Gemm::Impl::Choose(const Product& wanted, Algorithm* chosen) const {
  const FusedMultiplyParams& params = wanted.of_one;
  const cublasComputeType_t compute_type = ComputeType(params.a.dtype);
  const bool has_residual = params.residual.data != nullptr;
  ProductKey key{.device = device,
                 .dtype = params.a.dtype,
                 .out_dtype = params.d.dtype,
                 .tf32 = compute_type == CUBLAS_COMPUTE_32F_FAST_TF32,
                 .bias = params.bias != nullptr,
                 .relu = params.relu,
                 .residual = has_residual,
                 .deterministic = is_deterministic,
                 .m = wanted.rounded_m,
                 .n = params.d.channels,
                 .k = params.a.channels,
                 .count = wanted.count};
  // Where a group's first row is depends on the groups before it, and so on the batch. So for a deterministic product,
  // only the alignment of the pitch counts. The strides matter only if there are several products.
  const auto alignment = [&](ConstRows rows, int64_t stride) {
    if (is_deterministic) rows.data = nullptr;
    return AlignmentOf(rows, is_deterministic || wanted.count == 1 ? 0 : stride);
  };
  key.a_alignment = alignment(params.a, wanted.a_stride);
  key.b_alignment = alignment(params.b, wanted.b_stride);
  key.d_alignment = alignment(params.d, wanted.d_stride);
  key.residual_alignment = has_residual ? alignment(params.residual, wanted.d_stride) : key.d_alignment;
  if (is_deterministic) {
    key.m = kDeterministicRows;
    key.count = 1;
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
  const bool has_residual = params.residual.data != nullptr;
  Description description;
  VOXSERVE_RETURN_IF_CUDA(description.Init(wanted, ComputeType(params.a.dtype)));
  const float alpha = 1, beta = has_residual ? 1 : 0;
  const cublasStatus_t status = Cublas().cublasLtMatmul(
      cublaslt, &description.product, &alpha, params.b.data, &description.b, params.a.data, &description.a, &beta,
      has_residual ? params.residual.data : params.d.data, &description.residual, params.d.data, &description.d,
      &algorithm.algorithm, workspace, kWorkspaceBytes, stream);
  // The algorithm was chosen for another number of rows and other pitches. If cuBLASLt refuses it for this product,
  // nothing was launched.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return cudaErrorNotSupported;
  VOXSERVE_RETURN_IF_CUBLAS(status);
  return LaunchStatus(stream);
}

cudaError_t Gemm::Impl::RunByCublas(const MultiplyParams& params) const {
  const float alpha = 1, beta = params.accumulate ? 1 : 0;
  const cudaDataType_t type = DataTypeOf(params.a.dtype), out_type = DataTypeOf(params.c.dtype);
  const cublasComputeType_t compute_type = ComputeType(params.a.dtype);
  // Column-major: C^T [n, m] = B^T [n, k] A^T [k, m].
  VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasGemmStridedBatchedEx_64(
      cublas, CUBLAS_OP_N, CUBLAS_OP_N, params.c.channels, params.c.capacity, params.a.channels, &alpha, params.b.data,
      type, params.b.pitch, params.b_stride, params.a.data, type, params.a.pitch, params.a_stride, &beta, params.c.data,
      out_type, params.c.pitch, params.c_stride, params.count, compute_type, CUBLAS_GEMM_DEFAULT));
  return LaunchStatus(stream);
}

Gemm::Gemm(Impl* impl) : impl_(impl, [](Impl* owned) { delete owned; }) {}
Gemm::~Gemm() = default;

const char* Gemm::MissingLibrary() { return LoadCublas(); }

cudaError_t Gemm::Create(cudaStream_t stream, void* workspace, std::unique_ptr<Gemm>* gemm) {
  if (LoadCublas() != nullptr) return cudaErrorSharedObjectInitFailed;
  auto created = std::unique_ptr<Gemm>(new Gemm(new Impl));
  Impl& impl = *created->impl_;
  impl.stream = stream;
  VOXSERVE_RETURN_IF_CUDA(cudaGetDevice(&impl.device));
  VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasCreate_v2(&impl.cublas));
  VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasLtCreate(&impl.cublaslt));
  // The workspace must come last: setting the stream removes it.
  VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasSetStream_v2(impl.cublas, stream));
  if (workspace != nullptr) VOXSERVE_RETURN_IF_CUDA(created->SetWorkspace(workspace));
  VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasSetMathMode(
      impl.cublas, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
  *gemm = std::move(created);
  return cudaSuccess;
}

cudaError_t Gemm::SetWorkspace(void* workspace) {
  VOXSERVE_RETURN_IF_CUBLAS(Cublas().cublasSetWorkspace_v2(impl_->cublas, workspace, kWorkspaceBytes));
  impl_->workspace = workspace;
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
  if (params.c.capacity == 0 || params.c.channels == 0 || params.count == 0) return cudaSuccess;
  if (!AreValid(params.a, params.c)) return cudaErrorInvalidValue;
  const NvtxRange range("Multiply");
  const Product wanted = ProductOf(params);
  Algorithm algorithm;
  VOXSERVE_RETURN_IF_CUDA(impl_->Choose(wanted, &algorithm));
  const cudaError_t error = impl_->Run(wanted, algorithm);
  return error == cudaErrorNotSupported ? impl_->RunByCublas(params) : error;
}

cudaError_t Gemm::Prepare(const MultiplyParams& params) {
  if (params.c.capacity == 0 || params.c.channels == 0 || params.count == 0) return cudaSuccess;
  if (!AreValid(params.a, params.c)) return cudaErrorInvalidValue;
  Algorithm algorithm;
  VOXSERVE_RETURN_IF_CUDA(impl_->Choose(ProductOf(params), &algorithm));
  if (!AlgorithmTable::OfProcess().IsFirstRun(impl_->device, algorithm)) return cudaSuccess;
  return Multiply(params);
}

cudaError_t Gemm::MultiplyFused(const FusedMultiplyParams& params) {
  if (params.d.capacity == 0 || params.d.channels == 0) return cudaSuccess;
  if (!AreValid(params.a, params.d)) return cudaErrorInvalidValue;
  // Epilogue kernels read the bias in vectors of 16 bytes.
  if (params.bias != nullptr && AlignmentOf(params.bias) < kMaxAlignmentBytes) return cudaErrorNotSupported;
  const NvtxRange range("MultiplyFused");
  const Product wanted{.of_one = params,
                       .rounded_m = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(params.d.capacity)))};
  Algorithm algorithm;
  VOXSERVE_RETURN_IF_CUDA(impl_->Choose(wanted, &algorithm));
  return impl_->Run(wanted, algorithm);
}

}  // namespace voxserve::kernels::cuda
