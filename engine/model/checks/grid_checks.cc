#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"
#include "kernels/image/max_pool2d.h"

namespace voxserve {
namespace {

constexpr int64_t kMaxGridValues = std::numeric_limits<int32_t>::max();  // per sample: 8 GiB of float32

// Returns false and reports a problem if a sample has too many values.
bool FitsMemory(const std::array<int64_t, kernels::kMaxDimension>& size, int dimension, int64_t channels,
                const ProblemsAt& at) {
  int64_t room = kMaxGridValues / channels;
  for (const int64_t cells : size) room /= cells;
  if (room > 0) return true;
  at.Add("its result has ", absl::StrJoin(size.begin(), size.begin() + dimension, " x "), " cells of ", channels,
         " channels per sample; at most ", kMaxGridValues, " values are possible");
  return false;
}

class Conv2dReader {
 public:
  explicit Conv2dReader(const ProblemsAt& at) : at_(at) {}

  std::optional<kernels::Conv2dGeometry> Read(const model::v1::Conv2d& proto) {
    ReadKernelSize(proto.kernel_size(), kernels::kMaxConv2dKernelSize);
    ReadPair("stride", proto.stride(), 1, kMost, &geometry_.stride);
    ReadPair("padding", proto.padding(), 0, kMost, &geometry_.padding);
    ReadPair("dilation", proto.dilation(), 1, kMost, &geometry_.dilation);
    return Result();
  }

  std::optional<kernels::Conv2dGeometry> Read(const model::v1::MaxPool2d& proto) {
    ReadKernelSize(proto.kernel_size(), kernels::kMaxPool2dKernelSize);
    geometry_.stride = geometry_.kernel_size;
    ReadPair("stride", proto.stride(), 1, kMost, &geometry_.stride);
    ReadPair("padding", proto.padding(), 0, kMost, &geometry_.padding);
    for (size_t axis = 0; axis < 2 && is_ok_; ++axis) {
      if (2 * geometry_.padding[axis] <= geometry_.kernel_size[axis]) continue;
      at_.Add("padding is ", geometry_.padding[axis], " and kernel_size ", geometry_.kernel_size[axis],
              "; it must be at most half of the kernel");
      is_ok_ = false;
    }
    return Result();
  }

  std::optional<kernels::Conv2dGeometry> Read(const model::v1::ConvTranspose2d& proto) {
    geometry_.is_transposed = true;
    ReadKernelSize(proto.kernel_size(), kernels::kMaxConv2dKernelSize);
    ReadPair("stride", proto.stride(), 1, kMost, &geometry_.stride);
    ReadPair("padding", proto.padding(), 0, kMost, &geometry_.padding);
    ReadPair("output_padding", proto.output_padding(), 0, kMost, &geometry_.output_padding);
    for (size_t axis = 0; axis < 2 && is_ok_; ++axis) {
      if (geometry_.output_padding[axis] < geometry_.stride[axis]) continue;
      at_.Add("output_padding is ", geometry_.output_padding[axis], " and stride ", geometry_.stride[axis],
              "; it must be below the stride");
      is_ok_ = false;
      break;
    }
    return Result();
  }

 private:
  static constexpr uint32_t kMost = 128;

  template <typename Values>
  void ReadKernelSize(const Values& values, uint32_t most) {
    if (values.empty()) {
      at_.Add("has no kernel_size");
      is_ok_ = false;
      return;
    }
    ReadPair("kernel_size", values, 1, most, &geometry_.kernel_size);
  }

  // Reads rows and columns, or one value for both. Without values, `pair` keeps its default.
  template <typename Values>
  void ReadPair(const char* name, const Values& values, uint32_t least, uint32_t most, std::array<int32_t, 2>* pair) {
    if (values.empty()) return;
    if (values.size() > 2) {
      at_.Add(name, " has ", values.size(), " values; an image has rows and columns");
      is_ok_ = false;
      return;
    }
    for (int i = 0; i < 2; ++i) {
      const int index = std::min(i, values.size() - 1);
      const uint32_t value = values.Get(index);
      if ((value < least || value > most) && i == index) {
        at_.Add(name, "[", index, "] is ", value, "; it must be ", least, " to ", most);
        is_ok_ = false;
      }
      (*pair)[static_cast<size_t>(i)] = static_cast<int32_t>(std::clamp(value, least, most));
    }
  }

  std::optional<kernels::Conv2dGeometry> Result() const { return is_ok_ ? std::optional(geometry_) : std::nullopt; }

  const ProblemsAt& at_;
  kernels::Conv2dGeometry geometry_;
  bool is_ok_ = true;
};

// Returns the input of an operator on one image. Returns null if the input is not known. Returns null and reports a
// problem if the input is no image.
const GraphNode* ImageInput(const NodeContext& context) {
  const GraphNode* const input = context.FeaturesInput(0);
  if (input == nullptr || (input->grid && input->grid->dimension == 2)) return input;
  context.at.Add("its input ", Quoted(input->name), " has ",
                 input->grid ? absl::StrCat("cells of ", input->grid->dimension, " axes") : RowsText(*input),
                 "; it needs an image, as to_bev makes");
  return nullptr;
}

// Sets the size and channels of the image that a convolution or pool makes. Reports a problem if the image would be
// empty.
void PlaceImage(const GraphNode& input, const kernels::Conv2dGeometry& geometry, int channels, NodeContext& context) {
  const kernels::Axes& size = input.grid->size;
  const int64_t rows = geometry.OutSize(0, size[0]), columns = geometry.OutSize(1, size[1]);
  if (rows <= 0 || columns <= 0) {
    context.at.Add("its kernel of ", geometry.kernel_size[0], " x ", geometry.kernel_size[1],
                   " leaves nothing of its input's ", size[0], " x ", size[1], " cells");
    return;
  }
  if (!FitsMemory({rows, columns, 1, 1}, 2, channels, context.at)) return;
  context.node.level = kSampleLevel;
  context.node.grid =
      GridShape{.dimension = 2, .size = {static_cast<int32_t>(rows), static_cast<int32_t>(columns), 1, 1}};
  context.node.channels = channels;
}

// Checks the parameters that convolutions and transposed convolutions have in common. geometry: nullopt if it has a
// problem.
void CheckImageConv(const std::optional<kernels::Conv2dGeometry>& geometry, bool is_transposed, uint32_t out_channels,
                    uint32_t groups, bool has_bias, NodeContext& context) {
  Conv2dOp op{.out_channels = ReadOutChannels(out_channels, context.at)};
  const GraphNode* const input = ImageInput(context);
  if (input != nullptr) op.in_channels = input->channels;
  const int num_groups = ReadGroups(groups, op.in_channels, op.out_channels, context.at);
  const int64_t ins = num_groups == 0 ? kUnknownSize : SizeOrUnknown(op.in_channels / num_groups);
  const int64_t outs = SizeOrUnknown(op.out_channels);
  op.weight = context.ReadTensor("weight", {is_transposed ? ins : outs, is_transposed ? outs : ins,
                                            geometry ? geometry->kernel_size[0] : kUnknownSize,
                                            geometry ? geometry->kernel_size[1] : kUnknownSize});
  if (has_bias) op.bias = context.ReadTensor("bias", {outs});
  if (geometry && num_groups > 0) {
    op.geometry = *geometry;
    op.geometry.groups = num_groups;
    if (input != nullptr && op.out_channels > 0) PlaceImage(*input, op.geometry, op.out_channels, context);
  }
  context.node.op = std::move(op);
}

// Checks a to_dense node or, with is_from_above, a to_bev node.
void CheckCells(bool is_from_above, NodeContext& context) {
  context.node.op = ToDenseOp{.is_from_above = is_from_above};
  if (is_from_above && context.graph.dimension != 2 && context.graph.dimension != 3) {
    context.at.Add("to_bev needs 2 or 3 axes; the network has ", context.graph.dimension);
    return;
  }
  const GraphNode* const input = context.FeaturesInput(0);
  if (input == nullptr) return;
  const std::optional<kernels::Axes>& shape =
      context.graph.levels.levels()[static_cast<size_t>(input->level)].spatial_shape;
  if (!shape) {
    if (!context.voxelize.is_broken) {
      context.at.Add(
          "needs a spatial shape: a voxelize with ORIGIN_RANGE, and no RULE_EXPAND or KIND_GENERATIVE in between");
    }
    return;
  }
  GridShape grid{.dimension = context.graph.dimension, .size = *shape};
  int64_t channels = input->channels;
  if (is_from_above) {
    grid = {.dimension = 2, .size = {(*shape)[1], (*shape)[0], 1, 1}};
    channels *= (*shape)[2];
    if (channels > kMaxChannels) {
      context.at.Add("has ", input->channels, " channels at ", (*shape)[2], " heights; at most ", kMaxChannels,
                     " channels are possible");
      return;
    }
  }
  if (!FitsMemory({grid.size[0], grid.size[1], grid.size[2], grid.size[3]}, grid.dimension, channels, context.at))
    return;
  context.node.level = kSampleLevel;
  context.node.grid = grid;
  context.node.channels = static_cast<int>(channels);
}

}  // namespace

void CheckToDense(NodeContext& context) { CheckCells(/*is_from_above=*/false, context); }

void CheckToBev(NodeContext& context) { CheckCells(/*is_from_above=*/true, context); }

void CheckFromDense(NodeContext& context) {
  FromDenseOp op;
  if (context.proto.from_dense().sites_of().empty()) context.at.Add("needs sites_of");
  const GraphNode* const input = context.FeaturesInput(0);
  if (input != nullptr && !input->grid) {
    context.at.Add("its input ", Quoted(input->name), " has ", RowsText(*input), "; it needs cells, as to_dense makes");
  } else if (const GraphNode* const known = context.KnownPartner(); input != nullptr && known != nullptr) {
    const GraphNode& given = *known;
    const std::optional<kernels::Axes> shape =
        given.level < 0 ? std::nullopt : context.graph.levels.levels()[static_cast<size_t>(given.level)].spatial_shape;
    if (given.level < 0) {
      context.at.Add("sites_of ", Quoted(given.name), " has ", RowsText(given), "; sites are those of voxels");
    } else if (!shape) {
      context.at.Add("the sites of ", Quoted(given.name), " have no spatial shape");
    } else if (const GridShape sites{.dimension = context.graph.dimension, .size = *shape}; *input->grid != sites) {
      context.at.Add("the sites of ", Quoted(given.name), " are in a shape of ", SizeText(sites), "; the cells of ",
                     Quoted(input->name), " are ", SizeText(*input->grid));
    } else {
      op.sites_of = context.partner;
      context.node.level = given.level;
      context.node.channels = input->channels;
    }
  }
  context.node.op = op;
}

void CheckConv2d(NodeContext& context) {
  const model::v1::Conv2d& proto = context.proto.conv2d();
  CheckImageConv(Conv2dReader(context.at).Read(proto), /*is_transposed=*/false, proto.out_channels(), proto.groups(),
                 proto.bias(), context);
}

void CheckConvTranspose2d(NodeContext& context) {
  const model::v1::ConvTranspose2d& proto = context.proto.conv_transpose2d();
  CheckImageConv(Conv2dReader(context.at).Read(proto), /*is_transposed=*/true, proto.out_channels(), /*groups=*/1,
                 proto.bias(), context);
}

void CheckConstant(NodeContext& context) {
  const model::v1::Constant& proto = context.proto.constant();
  bool is_ok = true;
  const auto read = [&](const char* name, uint32_t size, int64_t most) {
    if (size >= 1 && size <= most) return int64_t{size};
    context.at.Add(name, " is ", size, "; it must be 1 to ", most);
    is_ok = false;
    return kUnknownSize;
  };
  const int64_t rows = read("rows", proto.rows(), kMaxGridValues),
                columns = read("columns", proto.columns(), kMaxGridValues);
  const int64_t channels = read("channels", proto.channels(), kMaxChannels);
  SampleRowsOp op;
  op.weight = context.ReadTensor("weight", {rows, columns, channels});
  context.node.op = std::move(op);
  if (!is_ok || !FitsMemory({rows, columns, 1, 1}, 2, channels, context.at)) return;
  context.node.level = kSampleLevel;
  context.node.grid =
      GridShape{.dimension = 2, .size = {static_cast<int32_t>(rows), static_cast<int32_t>(columns), 1, 1}};
  context.node.channels = static_cast<int>(channels);
}

void CheckMaxPool2d(NodeContext& context) {
  const std::optional<kernels::Conv2dGeometry> geometry = Conv2dReader(context.at).Read(context.proto.max_pool2d());
  context.node.op = MaxPool2dOp{.geometry = geometry.value_or(kernels::Conv2dGeometry())};
  const GraphNode* const input = ImageInput(context);
  if (geometry && input != nullptr) PlaceImage(*input, *geometry, input->channels, context);
}

}  // namespace voxserve
