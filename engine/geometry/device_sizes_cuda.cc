#include <cuda_runtime_api.h>

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/geometry/device_sizes.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/core/clear.h"

namespace voxserve {

absl::Status CheckNumRows(int64_t rows, const char* what) {
  if (rows <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return OutOfMemoryError(
      absl::StrCat("a batch of up to ", rows, " ", what, "; the limit is ", std::numeric_limits<int32_t>::max()));
}

int64_t DeviceSizes::Cut(int64_t* block, Arrays& arrays) const {
  int64_t count = 0;
  const auto take = [&](int64_t values) {
    int64_t* const array = block == nullptr ? nullptr : block + count;
    count += values;
    return array;
  };
  const int64_t samples = shape_.num_samples;
  arrays.sample_begin = take(samples + 1);
  arrays.num_invalid = take(samples);
  arrays.num_out_of_range = take(samples);
  arrays.num_dropped_points = take(samples);
  arrays.num_dropped_voxels = take(samples);
  arrays.max_coordinate = take(kernels::kMaxDimension);
  arrays.num_sites = take(shape_.num_levels);
  arrays.held_sites = take(shape_.num_levels);
  arrays.beyond_limits = take(samples * shape_.num_levels);
  arrays.num_valid = take(shape_.num_selected > 0 ? samples : 0);
  arrays.selected = take((shape_.num_selected + 1) / 2);
  arrays.offset_begin = take(offsets_before_.back());
  return count;
}

void DeviceSizes::Begin(const Shape& shape, GeometryMemory& memory) {
  memory_ = &memory;
  shape_ = shape;
  shape_.rulebook_offsets = {};
  offsets_before_.assign(1, 0);
  for (const int32_t num_offsets : shape.rulebook_offsets) {
    offsets_before_.push_back(offsets_before_.back() + num_offsets + 1);
  }
  host_.assign(static_cast<size_t>(Cut(nullptr, on_device_)), 0);
  Cut(host_.data(), on_host_);
}

absl::Status DeviceSizes::TakeMemory() {
  const size_t bytes = host_.size() * sizeof(int64_t);
  RETURN_IF_ERROR(memory_->context().sizes.Reserve(static_cast<int64_t>(bytes)));
  ASSIGN_OR_RETURN(int64_t * block, memory_->Take<int64_t>(static_cast<int64_t>(host_.size())));
  RETURN_IF_CUDA_ERROR(kernels::cuda::Clear(block, bytes, memory_->stream().get()));
  Cut(block, on_device_);
  return absl::OkStatus();
}

absl::Status DeviceSizes::QueueCopy() {
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(memory_->context().sizes.data(), on_device_.sample_begin,
                                       host_.size() * sizeof(int64_t), cudaMemcpyDeviceToHost,
                                       memory_->stream().get()));
  return absl::OkStatus();
}

void DeviceSizes::TakeCopy() {
  std::memcpy(host_.data(), memory_->context().sizes.data(), host_.size() * sizeof(int64_t));
}

}  // namespace voxserve
