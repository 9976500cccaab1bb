#pragma once

// Int8Weights holds the weights of a product in 8 bits, in the order in which the kernel of a device reads them: of
// kernels/int8/int8_product.h on the CPU, on a GPU of kernels/conv/implicit_gemm/int8_implicit_gemm.h, or for
// convolutions of images of kernels/image/int8/int8_im2col.h.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/ops/weights.h"
#include "kernels/image/conv2d.h"
#include "kernels/int8/int8_product.h"

namespace voxserve {

class Int8Weights {
 public:
  Int8Weights() = default;  // none
  // numbers: [num_offsets, in_channels, out_channels]
  Int8Weights(const int8_t* numbers, int32_t num_offsets, int32_t in_channels, int32_t out_channels, bool on_cuda);

  // Returns the weights of a convolution of images. numbers: [cells, in_channels, out_channels]
  static Int8Weights OfConv2d(const int8_t* numbers, const kernels::Conv2dGeometry& geometry, int32_t in_channels,
                              int32_t out_channels, bool on_cuda);

  // Null on a GPU, and if there are none.
  const kernels::Int8Line* lines() const { return lines_.empty() ? nullptr : lines_.data(); }
  // Null on the CPU, and before Upload.
  const void* on_device() const { return for_device_.data(); }
  // Returns the bytes of memory that the weights take on the CPU; 0 on a GPU, where the uploader counts them.
  size_t bytes() const { return lines_.size() * sizeof(kernels::Int8Line); }

  absl::Status Upload(WeightUploader& uploader) { return uploader.Upload(for_device_, DType::kInt8); }

 private:
  std::vector<kernels::Int8Line> lines_;
  Weights for_device_;
};

}  // namespace voxserve
