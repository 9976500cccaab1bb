#pragma once

// Int8Convolution computes one convolution of a scan (scan_convolutions.h) by the implicit GEMM in 8 bits, on random
// features of uint8 and weights of int8, with bias and ReLU. It compares sampled rows with exact sums. Errors of CUDA
// end the program.

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/conv/implicit_gemm/int8_implicit_gemm.h"
#include "tests/bench/scan_convolutions.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {

class Int8Convolution {
 public:
  // The convolution and the context must outlive this object.
  Int8Convolution(const ScanConvolution& conv, const StepContext& context);

  // Returns the default block ({}), then every block that the GPU serves.
  std::vector<kernels::ConvBlock> Blocks() const;
  // Prepares Queue.
  void UseBlock(const kernels::ConvBlock& block);
  void Queue() const;
  // Computes the convolution once with the block that is in use. Returns true if sampled rows have the bytes that exact
  // sums give, and all bytes are those of the first block that was checked. Prints to stderr what differs.
  bool Check();

 private:
  static constexpr int32_t kSampledRows = 300;

  std::vector<uint8_t> OutBytes() const;
  // Returns the exact results of an output row, whose input rows are those of a place of the tiles form.
  std::vector<uint8_t> ExactRow(int64_t place) const;

  const ScanConvolution& conv_;
  const cudaStream_t stream_;
  const int32_t in_channels_, out_channels_;
  const int64_t in_pitch_, out_pitch_;
  std::vector<uint8_t> in_;      // [num_in_rows, in_pitch_]
  std::vector<int8_t> weights_;  // [K, in_channels, out_channels]
  std::vector<float> multiplier_, bias_;
  std::vector<int32_t> places_;   // [places] the output row of a place
  std::vector<uint32_t> masks_;   // of the tiles form
  std::vector<int32_t> in_rows_;  // of the tiles form
  std::unique_ptr<support::DeviceArray<uint8_t>> device_in_, device_out_;
  std::unique_ptr<support::DeviceArray<int8_t>> device_weights_;
  std::unique_ptr<support::DeviceArray<float>> device_multiplier_, device_bias_;
  std::unique_ptr<support::DeviceArray<char>> workspace_;
  kernels::Int8ImplicitGemmParams params_;
  std::vector<uint8_t> checked_;  // the bytes of the first block that was checked
};

}  // namespace voxserve::bench
