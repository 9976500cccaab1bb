#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/ops/weights.h"
#include "engine/runtime/cuda_status.h"

namespace voxserve {
namespace {

// Converts values to a 16-bit type. Returns false if a value is beyond the type's range.
template <typename T, typename Convert, typename Revert>
bool Round(const std::vector<float>& values, const Convert& convert, const Revert& revert, std::vector<T>& rounded) {
  rounded.resize(values.size());
  bool in_range = true;
  for (size_t i = 0; i < values.size(); ++i) {
    rounded[i] = convert(values[i]);
    in_range &= std::isfinite(revert(rounded[i]));
  }
  return in_range;
}

}  // namespace

absl::Status WeightUploader::CopyToDevice(Weights& weights, DType dtype) {
  const bool are_numbers = !weights.numbers_.empty();
  if (weights.values_.empty() && !are_numbers) return absl::OkStatus();
  if (are_numbers != (dtype == DType::kInt8)) {
    return absl::InternalError(absl::StrCat("weights that are ", are_numbers ? "" : "no ",
                                            "whole numbers cannot be uploaded as ", kernels::NameOf(dtype)));
  }
  std::vector<__half> halves;
  std::vector<__nv_bfloat16> bfloats;
  const void* from = weights.values_.data();
  bool in_range = true;
  if (are_numbers) {
    from = weights.numbers_.data();
  } else if (dtype == DType::kFloat16) {
    in_range = Round(
        weights.values_, [](float v) { return __float2half_rn(v); }, [](__half v) { return __half2float(v); }, halves);
    from = halves.data();
  } else if (dtype == DType::kBfloat16) {
    in_range = Round(
        weights.values_, [](float v) { return __float2bfloat16_rn(v); },
        [](__nv_bfloat16 v) { return __bfloat162float(v); }, bfloats);
    from = bfloats.data();
  }
  if (!in_range) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat("a weight, with its batch norm folded in, is beyond ",
                                                              kernels::NameOf(dtype),
                                                              "; set the model's precision to FLOAT32 or BFLOAT16")),
                      error_reason::kBadModel);
  }
  RETURN_IF_CUDA_ERROR(cudaSetDevice(pool_->device()));
  const auto num_values = static_cast<int64_t>(are_numbers ? weights.numbers_.size() : weights.values_.size());
  const int64_t bytes = num_values * SizeOf(dtype);
  ASSIGN_OR_RETURN(weights.device_, DeviceBuffer::Create(*pool_, bytes, stream_));
  RETURN_IF_CUDA_ERROR(
      cudaMemcpyAsync(weights.device_.data(), from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_.get()));
  RETURN_IF_ERROR(stream_.Synchronize());
  weights.num_values_on_device_ = num_values;
  weights.values_ = {};
  weights.numbers_ = {};
  uploaded_bytes_ += bytes;
  return absl::OkStatus();
}

}  // namespace voxserve
