#pragma once

// Weights holds constants of a step. The compiler makes them as float32, or as whole numbers of 8 bits, in host memory.
// For a GPU, WeightUploader then moves them to device memory, in the type that the step's kernel reads.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/runtime/device_pool.h"
#include "engine/tensor/dtype.h"

namespace voxserve {

class Weights {
 public:
  Weights() = default;
  Weights(std::vector<float> values) : values_(std::move(values)) {}  // NOLINT: a vector of weights is weights
  // Makes weights that only an upload as kInt8 can take.
  explicit Weights(std::vector<int8_t> numbers) : numbers_(std::move(numbers)) {}

  bool empty() const { return num_values_on_device_ == 0 && values_.empty() && numbers_.empty(); }
  // Null if empty.
  const void* data() const {
    if (device_.data() != nullptr) return device_.data();
    return values_.empty() ? nullptr : values_.data();
  }
  const float* floats() const { return static_cast<const float*>(data()); }
  // Returns the float32 values in host memory. They are empty after an upload.
  const std::vector<float>& values() const { return values_; }

 private:
  friend class WeightUploader;
  std::vector<float> values_;
  std::vector<int8_t> numbers_;
  DeviceBuffer device_;
  int64_t num_values_on_device_ = 0;
};

// Uploads weights to one device. Only the thread that loads the model uses it. The pool and the stream outlive the
// weights.
class WeightUploader {
 public:
  WeightUploader(DevicePool* pool, StreamView stream) : pool_(pool), stream_(stream) {}

  // Converts the values to dtype and copies them to the device. Waits for the copy, and then frees the host's values.
  // float16 and bfloat16 are rounded to nearest, ties to even. Whole numbers are not converted: their dtype is kInt8.
  // Returns INVALID_ARGUMENT (BAD_MODEL) if a value is beyond the type's range, and RESOURCE_EXHAUSTED if the device's
  // memory does not suffice.
  absl::Status Upload(Weights& weights, DType dtype) {
    if constexpr (kernels::kHasCuda) {
      return CopyToDevice(weights, dtype);
    } else {
      return absl::InternalError("this build has no CUDA");
    }
  }

  int64_t uploaded_bytes() const { return uploaded_bytes_; }

 private:
  absl::Status CopyToDevice(Weights& weights, DType dtype);

  DevicePool* pool_;
  StreamView stream_;
  int64_t uploaded_bytes_ = 0;
};

}  // namespace voxserve
