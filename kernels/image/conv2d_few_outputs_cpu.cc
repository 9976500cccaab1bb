// The 2D convolution for groups with few output channels (conv2d_few_outputs.h). It multiplies a band of an image's
// rows by the weights of all cells of a group at once: [(output, cell), channels] by [channels, positions]. The inputs
// are read once, in place. Each row of the product has one value per position. The rows of an output's cells are then
// added up, each shifted by its cell's offset.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "kernels/core/epilogue.h"
#include "kernels/core/gemm.h"
#include "kernels/image/conv2d_few_outputs.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int32_t kMaxGroupOutputs = 16;
// The largest product of the strides for this method. Products are computed for all inputs, and a stride leaves most of
// them out.
constexpr int32_t kMaxStrides = 4;
// The bytes of a band's products, which should stay in a core's L2 cache.
constexpr int64_t kGroupedBandBytes = 256 << 10;

// A thread's memory while it computes bands.
struct GroupedScratch {
  std::vector<float> products;
  std::vector<float> sums;
};

class GroupedConvolution {
 public:
  explicit GroupedConvolution(const Conv2dParams& params)
      : params_(params),
        geometry_(params.geometry),
        out_rows_(geometry_.OutSize(0, params.in_rows)),
        out_columns_(geometry_.OutSize(1, params.in_columns)),
        group_in_(params.in.channels / geometry_.groups),
        group_out_(params.out.channels / geometry_.groups),
        num_cells_(geometry_.kernel_size[0] * geometry_.kernel_size[1]),
        reach_(geometry_.dilation[0] * (geometry_.kernel_size[0] - 1) + 1) {
    const int64_t row_bytes = std::max<int64_t>(1, int64_t{params.in_columns} * num_cells_ * group_out_ * 4);
    band_rows_ = std::max<int64_t>(0, kGroupedBandBytes / row_bytes - reach_) / geometry_.stride[0] + 1;
    num_bands_ = (out_rows_ - 1) / band_rows_ + 1;
  }

  // Returns the number of parts: one per image, band and group. Parts with the same rows follow each other.
  int64_t num_parts() const { return params_.num_images * num_bands_ * geometry_.groups; }

  void ComputePart(int64_t part, GroupedScratch& scratch) const {
    const auto group = static_cast<int32_t>(part % geometry_.groups);
    const int64_t band = part / geometry_.groups % num_bands_;
    const int64_t image = part / geometry_.groups / num_bands_;
    const int64_t row_begin = band * band_rows_;
    const int64_t row_end = std::min(out_rows_, row_begin + band_rows_);

    // The input rows that the band reads, without those outside the image.
    const int64_t first = row_begin * geometry_.stride[0] - geometry_.padding[0];
    const int64_t last = (row_end - 1) * geometry_.stride[0] - geometry_.padding[0] + reach_;
    const int64_t in_begin = std::clamp<int64_t>(first, 0, params_.in_rows);
    const int64_t in_end = std::clamp<int64_t>(last, in_begin, params_.in_rows);
    const int64_t num_positions = (in_end - in_begin) * params_.in_columns;
    scratch.products.resize(static_cast<size_t>(num_positions * num_cells_ * group_out_));
    scratch.sums.resize(static_cast<size_t>(out_columns_));
    const int32_t num_products = group_out_ * num_cells_;  // per position
    const auto* weights = static_cast<const float*>(params_.weights) + int64_t{group} * num_products * group_in_;
    const int64_t first_position = (image * params_.in_rows + in_begin) * params_.in_columns;
    Gemm(
        {.a = ConstRows::Packed(weights, DType::kFloat32, num_products, group_in_),
         .b = params_.in.RowRange(first_position, first_position + num_positions).Columns(group * group_in_, group_in_),
         .c = {.data = scratch.products.data(),
               .channels = static_cast<int32_t>(num_positions),
               .pitch = std::max<int64_t>(1, num_positions),
               .capacity = num_products},
         .is_b_transposed = true});

    const int64_t out_begin = (image * out_rows_ + row_begin) * out_columns_;
    const int64_t out_end = (image * out_rows_ + row_end) * out_columns_;
    const int64_t channel = int64_t{group} * group_out_;
    float* const out = params_.out.floats() + channel;
    const Rows group_out{.data = out, .channels = group_out_, .pitch = params_.out.pitch, .capacity = out_end};
    Epilogue epilogue = params_.epilogue;
    if (epilogue.bias != nullptr) epilogue.bias = static_cast<const float*>(epilogue.bias) + channel;
    if (epilogue.residual.data != nullptr) epilogue.residual.data = epilogue.residual.floats() + channel;
    StartRows(epilogue, group_out, out_begin, out_end);
    for (int64_t row = row_begin; row < row_end; ++row) {
      float* const to = out + (image * out_rows_ + row) * out_columns_ * params_.out.pitch;
      for (int32_t output = 0; output < group_out_; ++output) {
        AddUp(scratch.products.data() + output * num_cells_ * num_positions, num_positions, row, in_begin, in_end,
              scratch.sums.data());
        for (int64_t column = 0; column < out_columns_; ++column) {
          to[column * params_.out.pitch + output] += scratch.sums[static_cast<size_t>(column)];
        }
      }
    }
    FinishRows(epilogue, group_out, out_begin, out_end);
  }

 private:
  // Computes an output row from the products of its cells with the input rows [in_begin, in_end).
  void AddUp(const float* products, int64_t num_positions, int64_t row, int64_t in_begin, int64_t in_end,
             float* sums) const {
    std::fill_n(sums, out_columns_, 0.0f);
    const int64_t stride = geometry_.stride[1];
    for (int32_t cell = 0; cell < num_cells_; ++cell, products += num_positions) {
      const int64_t in_row = row * geometry_.stride[0] - geometry_.padding[0] +
                             int64_t{cell / geometry_.kernel_size[1]} * geometry_.dilation[0];
      if (in_row < in_begin || in_row >= in_end) continue;
      // Output column c reads input column stride * c + shift, if that is inside the image.
      const int64_t shift = int64_t{cell % geometry_.kernel_size[1]} * geometry_.dilation[1] - geometry_.padding[1];
      const int64_t begin = shift < 0 ? (stride - 1 - shift) / stride : 0;
      const int64_t end =
          shift < params_.in_columns ? std::min(out_columns_, (params_.in_columns - 1 - shift) / stride + 1) : 0;
      const float* const from = products + (in_row - in_begin) * params_.in_columns;
      if (stride == 1) {
        for (int64_t column = begin; column < end; ++column) sums[column] += from[column + shift];
      } else {
        for (int64_t column = begin; column < end; ++column) sums[column] += from[column * stride + shift];
      }
    }
  }

  const Conv2dParams& params_;
  const Conv2dGeometry& geometry_;
  int64_t out_rows_, out_columns_;
  int32_t group_in_, group_out_;
  int32_t num_cells_;
  int64_t reach_;      // input rows that one output reads
  int64_t band_rows_;  // output rows; they do not depend on num_images, so the order of sums does not either
  int64_t num_bands_;  // per image
};

}  // namespace

bool HasFewOutputs(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels) {
  const int32_t group_in = in_channels / geometry.groups, group_out = out_channels / geometry.groups;
  // oneDNN vectorises over the outputs of a group, or over groups.
  constexpr int32_t kVectorOutputs = 8;
  const bool is_for_library = group_out % kVectorOutputs == 0 || (group_in == 1 && group_out == 1);
  return !geometry.is_transposed && geometry.groups > 1 && !is_for_library && group_out <= kMaxGroupOutputs &&
         int64_t{geometry.stride[0]} * geometry.stride[1] <= kMaxStrides;
}

// Packs to [groups, outputs of a group, cells, channels of a group].
std::vector<float> PackFewOutputsWeights(const Conv2dGeometry& geometry, int32_t in_channels, int32_t out_channels,
                                         const float* weights) {
  const int64_t num_cells = int64_t{geometry.kernel_size[0]} * geometry.kernel_size[1];
  const int64_t group_in = in_channels / geometry.groups;
  std::vector<float> packed(static_cast<size_t>(out_channels * group_in * num_cells));
  float* to = packed.data();
  for (int64_t output = 0; output < out_channels; ++output, weights += group_in * num_cells) {
    for (int64_t cell = 0; cell < num_cells; ++cell) {
      for (int64_t channel = 0; channel < group_in; ++channel) *to++ = weights[channel * num_cells + cell];
    }
  }
  return packed;
}

void FewOutputsConv2d(const Conv2dParams& params, ThreadPool& pool) {
  const GroupedConvolution convolution(params);
  const int64_t num_parts = convolution.num_parts();
  std::atomic<int64_t> next = 0;
  pool.ParallelFor(std::min<int64_t>(pool.num_threads(), num_parts), 1, [&](int64_t, int64_t) {
    GroupedScratch scratch;
    for (int64_t i = next++; i < num_parts; i = next++) convolution.ComputePart(i, scratch);
  });
}

}  // namespace voxserve::kernels::cpu
