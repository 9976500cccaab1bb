#include "tests/bench/int8_convolution.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "tests/kernels/int8/int8_testing.h"

namespace voxserve::bench {
namespace {

using kernels::DType;
using support::Device;
using support::DeviceArray;
using support::ExpectCudaSuccess;

template <typename T>
std::vector<T> FromDevice(const T* from, int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  support::CopyFromDevice(Device::kCuda, values.data(), from, values.size() * sizeof(T));
  return values;
}

}  // namespace

Int8Convolution::Int8Convolution(const ScanConvolution& conv, const StepContext& context)
    : conv_(conv),
      stream_(context.stream()),
      in_channels_(conv.layer.in_channels),
      out_channels_(conv.layer.out_channels),
      in_pitch_(kernels::PaddedInt8Channels(in_channels_)),
      out_pitch_(kernels::PaddedInt8Channels(out_channels_)) {
  std::minstd_rand random(7);
  const int64_t num_in = conv.tables.num_in_rows, num_out = conv.tables.num_out_rows;
  for (int64_t i = 0; i < num_in * in_pitch_; ++i) in_.push_back(static_cast<uint8_t>(random() >> 8));
  const int64_t num_weights = int64_t{conv.layer.num_offsets} * in_channels_ * out_channels_;
  for (int64_t i = 0; i < num_weights; ++i)
    weights_.push_back(static_cast<int8_t>(static_cast<int32_t>(random() >> 8) % 255 - 127));
  // Results then fill most of uint8's range.
  const float typical = 128.0f * 64.0f * std::sqrt(static_cast<float>(conv.layer.num_offsets * in_channels_));
  for (int64_t c = 0; c < out_pitch_; ++c) {
    multiplier_.push_back(static_cast<float>(64 + c % 7) / typical);
    bias_.push_back(static_cast<float>(c % 11) * 3.0f);
  }

  const kernels::TilesView tiles = context.device_geometry->tiles(conv.layer.rulebook);
  const int64_t num_tiles = (num_out + kernels::kMaskTileRows - 1) / kernels::kMaskTileRows;
  places_ = FromDevice(tiles.out_rows, num_out);
  masks_ = FromDevice(tiles.masks, num_tiles * kernels::MaskWords(tiles.num_offsets));
  in_rows_ = FromDevice(tiles.in_rows, num_tiles * tiles.num_offsets * kernels::kMaskTileRows);

  device_in_ = std::make_unique<DeviceArray<uint8_t>>(Device::kCuda, in_);
  device_out_ = std::make_unique<DeviceArray<uint8_t>>(Device::kCuda, static_cast<size_t>(num_out * out_pitch_));
  device_weights_ = std::make_unique<DeviceArray<int8_t>>(
      Device::kCuda,
      kernels::PackInt8ImplicitGemmWeights(conv.layer.num_offsets, in_channels_, out_channels_, weights_.data()));
  device_multiplier_ = std::make_unique<DeviceArray<float>>(Device::kCuda, multiplier_);
  device_bias_ = std::make_unique<DeviceArray<float>>(Device::kCuda, bias_);
  // The output's scale is in the multiplier and the bias, as an engine would have it behind ReLU.
  params_ = {.tiles = tiles,
             .in = {.data = device_in_->data(),
                    .dtype = DType::kUint8,
                    .channels = in_channels_,
                    .pitch = in_pitch_,
                    .capacity = num_in},
             .weights = device_weights_->data(),
             .out = {.data = device_out_->data(),
                     .dtype = DType::kUint8,
                     .channels = out_channels_,
                     .pitch = out_pitch_,
                     .capacity = num_out},
             .epilogue = {.multiplier = device_multiplier_->data(),
                          .bias = device_bias_->data(),
                          .activation = kernels::ActivationFunction::kRelu}};
}

std::vector<kernels::ConvBlock> Int8Convolution::Blocks() const {
  std::vector<kernels::ConvBlock> blocks = kernels::cuda::Int8ImplicitGemmBlocks(out_channels_);
  blocks.insert(blocks.begin(), kernels::ConvBlock{});
  return blocks;
}

void Int8Convolution::UseBlock(const kernels::ConvBlock& block) {
  support::Synchronize();
  ExpectCudaSuccess(cudaStreamSynchronize(stream_));  // the last launch may still use the workspace
  params_.block = block;
  workspace_ =
      std::make_unique<DeviceArray<char>>(Device::kCuda, kernels::cuda::Int8ImplicitGemmWorkspaceBytes(params_));
  params_.workspace = workspace_->data();
}

void Int8Convolution::Queue() const { ExpectCudaSuccess(kernels::cuda::Int8ImplicitGemm(params_, stream_)); }

std::vector<uint8_t> Int8Convolution::OutBytes() const {
  ExpectCudaSuccess(cudaStreamSynchronize(stream_));
  return FromDevice<uint8_t>(device_out_->data(), static_cast<int64_t>(device_out_->size()));
}

std::vector<uint8_t> Int8Convolution::ExactRow(int64_t place) const {
  const int32_t num_offsets = conv_.layer.num_offsets;
  const int64_t tile = place / kernels::kMaskTileRows, words = kernels::MaskWords(num_offsets);
  std::vector<int64_t> sums(static_cast<size_t>(out_channels_));
  for (int32_t k = 0; k < num_offsets; ++k) {
    if ((masks_[static_cast<size_t>(tile * words + k / 32)] >> (k % 32) & 1) == 0) continue;
    const int32_t in_row = in_rows_[static_cast<size_t>((tile * num_offsets + k) * kernels::kMaskTileRows +
                                                        place % kernels::kMaskTileRows)];
    if (in_row < 0) continue;
    for (int32_t i = 0; i < in_channels_; ++i) {
      const int64_t value = in_[static_cast<size_t>(in_row * in_pitch_ + i)];
      const int8_t* const weights = weights_.data() + (int64_t{k} * in_channels_ + i) * out_channels_;
      for (int32_t o = 0; o < out_channels_; ++o) sums[static_cast<size_t>(o)] += value * weights[o];
    }
  }
  std::vector<uint8_t> row;
  for (size_t o = 0; o < sums.size(); ++o) {
    const float value = static_cast<float>(sums[o]) * multiplier_[o] + bias_[o];
    row.push_back(static_cast<uint8_t>(kernels::RoundedToInt8(DType::kUint8, std::fmax(value, 0.0f))));
  }
  return row;
}

bool Int8Convolution::Check() {
  ExpectCudaSuccess(cudaMemsetAsync(device_out_->data(), 0xA5, device_out_->size(), stream_));
  Queue();
  const std::vector<uint8_t> found = OutBytes();
  const std::string where = conv_.layer.node + ", block of " + std::to_string(params_.block.rows) + " x " +
                            std::to_string(params_.block.columns) + ", split K " +
                            std::to_string(params_.block.split_k);
  if (!checked_.empty()) {
    if (found == checked_) return true;
    std::fprintf(stderr, "%s: not the bytes of the first block\n", where.c_str());
    return false;
  }
  checked_ = found;
  std::minstd_rand random(11);
  const auto num_places = static_cast<int64_t>(places_.size());
  for (int32_t sample = 0; sample < kSampledRows && num_places > 0; ++sample) {
    const int64_t place = sample == 0 ? num_places - 1 : static_cast<int64_t>(random()) % num_places;
    const int64_t row = places_[static_cast<size_t>(place)];
    const std::vector<uint8_t> exact = ExactRow(place);
    for (int32_t o = 0; o < out_channels_; ++o) {
      const uint8_t value = found[static_cast<size_t>(row * out_pitch_ + o)];
      if (value == exact[static_cast<size_t>(o)]) continue;
      std::fprintf(stderr, "%s: row %lld (place %lld) channel %d is %d, by exact sums %d\n", where.c_str(),
                   static_cast<long long>(row), static_cast<long long>(place), o, value, exact[static_cast<size_t>(o)]);
      return false;
    }
  }
  return true;
}

}  // namespace voxserve::bench
