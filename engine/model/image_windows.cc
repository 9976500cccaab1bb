#include "engine/model/image_windows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <variant>

namespace voxserve {
namespace {

// Windows that reach farther than this are not followed, so that no number overflows.
constexpr int64_t kFarthestSource = 1 << 24;

// Boxes begin at multiples of this number of positions, so that what repeats after so many is the same in all of them.
constexpr int32_t kBoxStep = 4;
static_assert(kernels::kWideImageBox.rows % kBoxStep == 0 && kernels::kWideImageBox.columns % kBoxStep == 0 &&
              kernels::kNarrowImageBox.rows % kBoxStep == 0 && kernels::kNarrowImageBox.columns % kBoxStep == 0);

// A transposed convolution whose kernel is as large as its stride: output y depends on input y / stride, rounded down,
// which is at least (y - stride + 1) / stride.
std::optional<AxisWindow> AfterTransposed(const AxisWindow& in, int32_t stride) {
  if (in.source.step % stride != 0) return std::nullopt;
  const int32_t step = in.source.step / stride;
  return AxisWindow{
      .source = {.step = step, .before = in.source.before + step * (stride - 1), .after = in.source.after},
      .period = in.period * stride};
}

// Output y depends on the inputs from stride y - padding on, to `reach` behind.
AxisWindow AfterOrdinary(const AxisWindow& in, int32_t reach, int32_t stride, int32_t padding) {
  const kernels::SourceWindow& source = in.source;
  return {.source = {.step = source.step * stride,
                     .before = source.before + padding * source.step,
                     .after = source.after + (reach - padding) * source.step},
          .period = in.period / std::gcd(in.period, stride)};
}

}  // namespace

std::optional<ImageWindows> ImageWindows::After(const kernels::Conv2dGeometry& geometry) const {
  ImageWindows after{.source = source};
  for (size_t axis = 0; axis < 2; ++axis) {
    const AxisWindow& in = axes[axis];
    const int32_t kernel_size = geometry.kernel_size[axis], stride = geometry.stride[axis];
    const int32_t padding = geometry.padding[axis];
    std::optional<AxisWindow> window;
    if (geometry.is_transposed) {
      if (kernel_size != stride || padding != 0 || geometry.output_padding[axis] != 0) return std::nullopt;
      window = AfterTransposed(in, stride);
    } else {
      const int64_t reach = int64_t{geometry.dilation[axis]} * (kernel_size - 1);
      const int64_t farthest = std::abs(int64_t{in.source.before}) + std::abs(int64_t{in.source.after}) +
                               (reach + padding + stride) * in.source.step;
      if (farthest > kFarthestSource) return std::nullopt;
      window = AfterOrdinary(in, static_cast<int32_t>(reach), stride, padding);
    }
    if (!window || kBoxStep % window->period != 0) return std::nullopt;
    after.axes[axis] = *window;
  }
  return after;
}

std::optional<ImageWindows> ImageWindows::With(const ImageWindows& other) const {
  if (source != other.source) return std::nullopt;
  ImageWindows both{.source = source, .is_source = is_source && other.is_source};
  for (size_t axis = 0; axis < 2; ++axis) {
    const AxisWindow &one = axes[axis], &two = other.axes[axis];
    if (one.source.step != two.source.step) return std::nullopt;
    // Both periods divide kBoxStep, so that one divides the other.
    both.axes[axis] = {.source = {.step = one.source.step,
                                  .before = std::max(one.source.before, two.source.before),
                                  .after = std::max(one.source.after, two.source.after)},
                       .period = std::max(one.period, two.period)};
  }
  return both;
}

bool ImageWindows::AreSmallIn(const GridShape& source_shape) const {
  for (size_t axis = 0; axis < 2; ++axis) {
    if (8 * (axes[axis].source.before + axes[axis].source.after) > source_shape.size[axis]) return false;
  }
  return true;
}

std::vector<std::optional<ImageWindows>> FindImageWindows(const Graph& graph) {
  std::vector<std::optional<ImageWindows>> found(graph.nodes.size());
  for (size_t index = 0; index < graph.nodes.size(); ++index) {
    const GraphNode& node = graph.nodes[index];
    if (!node.grid || node.grid->dimension != 2) continue;
    const auto input = [&](size_t number) { return found[static_cast<size_t>(node.inputs[number])]; };
    std::optional<ImageWindows>& windows = found[index];
    if (std::holds_alternative<ToDenseOp>(node.op)) {
      windows = ImageWindows{.source = static_cast<int>(index), .axes = {}, .is_source = true};
    } else if (const auto* conv = std::get_if<Conv2dOp>(&node.op)) {
      if (input(0)) windows = input(0)->After(conv->geometry);
    } else if (const auto* pool = std::get_if<MaxPool2dOp>(&node.op)) {
      if (input(0)) windows = input(0)->After(pool->geometry);
    } else if (std::holds_alternative<BatchNormOp>(node.op) || std::holds_alternative<ActivationOp>(node.op) ||
               std::holds_alternative<AddOp>(node.op) || std::holds_alternative<ConcatOp>(node.op)) {
      windows = input(0);
      for (size_t i = 1; i < node.inputs.size() && windows; ++i) {
        windows = input(i) ? windows->With(*input(i)) : std::nullopt;
      }
      if (windows) windows->is_source = false;
    }
  }
  return found;
}

}  // namespace voxserve
