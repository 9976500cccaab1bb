#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "engine/graph/node_parameters.h"
#include "kernels/coordinate_key.h"

namespace voxserve {
namespace {

using kernels::Axes;
using kernels::CoordinateRule;
using model::v1::SparseConv;

class SparseConvReader {
 public:
  SparseConvReader(const SparseConv& proto, int dimension, const ProblemsAt& at)
      : proto_(proto), dimension_(dimension), at_(at) {}

  std::optional<SparseConvOp> Read() {
    op_.sites.geometry.dimension = dimension_;
    switch (proto_.kind()) {
      case SparseConv::KIND_SUBMANIFOLD:
        op_.kind = SparseConvOp::Kind::kSubmanifold;
        ReadSubmanifold();
        break;
      case SparseConv::KIND_STRIDED:
        op_.kind = SparseConvOp::Kind::kStrided;
        ReadStrided();
        break;
      case SparseConv::KIND_INVERSE:
        op_.kind = SparseConvOp::Kind::kInverse;
        ReadInverse();
        break;
      default:
        Report("kind must be KIND_SUBMANIFOLD, KIND_STRIDED or KIND_INVERSE");
    }
    if (!is_ok_) return std::nullopt;
    return op_;
  }

 private:
  template <typename... Args>
  void Report(const Args&... what) {
    at_.Add(what...);
    is_ok_ = false;
  }

  void RefuseRule(const char* kind) {
    if (proto_.rule() != SparseConv::RULE_UNSPECIFIED) Report("rule belongs to KIND_STRIDED, not to ", kind);
  }

  void RefusePartner() {
    if (!proto_.paired_with().empty()) Report("paired_with belongs to KIND_INVERSE alone");
  }

  void RefuseBounds() {
    if (proto_.lower_bound_size() > 0) Report("lower_bound belongs to RULE_EXPAND alone");
    if (proto_.upper_bound_size() > 0) Report("upper_bound belongs to RULE_EXPAND alone");
  }

  void ReadSubmanifold() {
    RefuseRule("KIND_SUBMANIFOLD");
    RefusePartner();
    RefuseBounds();
    ReadKernel();
    if (std::any_of(proto_.stride().begin(), proto_.stride().end(), [](uint32_t stride) { return stride != 1; })) {
      Report("KIND_SUBMANIFOLD has stride 1");
    }
    CentrePadding();
    CheckReach();
  }

  void ReadStrided() {
    RefusePartner();
    ReadKernel();
    switch (proto_.rule()) {
      case SparseConv::RULE_FLOOR:
        op_.sites.rule = CoordinateRule::kFloor;
        RefuseBounds();
        CentrePadding();
        break;
      case SparseConv::RULE_PADDED:
        op_.sites.rule = CoordinateRule::kPadded;
        RefuseBounds();
        if (proto_.padding_size() > 0) ReadAxes("padding", proto_.padding(), 0, &op_.sites.geometry.padding);
        break;
      case SparseConv::RULE_EXPAND:
        op_.sites.rule = CoordinateRule::kExpand;
        CentrePadding();
        ReadBounds();
        break;
      default:
        Report("rule must be RULE_FLOOR, RULE_PADDED or RULE_EXPAND");
    }
    CheckReach();
  }

  void ReadInverse() {
    RefuseRule("KIND_INVERSE");
    RefuseBounds();
    if (proto_.paired_with().empty()) Report("KIND_INVERSE needs paired_with");
    for (const auto& [name, size] : {std::pair{"kernel_size", proto_.kernel_size_size()},
                                     {"stride", proto_.stride_size()},
                                     {"dilation", proto_.dilation_size()},
                                     {"padding", proto_.padding_size()}}) {
      if (size > 0) Report(name, " comes from the convolution in paired_with; leave it out");
    }
  }

  // One value per axis, from `least` to the margin of a coordinate's key.
  template <typename Values>
  void ReadAxes(const char* name, const Values& values, uint32_t least, Axes* axes) {
    if (values.size() != dimension_) {
      Report(name, " has ", values.size(), " values; the network has ", dimension_, " axes");
      return;
    }
    for (int axis = 0; axis < dimension_; ++axis) {
      const uint32_t value = values.Get(axis);
      constexpr uint32_t kMost = kernels::kCoordinateMargin;
      if (value < least || value > kMost) {
        Report(name, "[", axis, "] is ", value, "; it must be ", least, " to ", kMost);
      }
      (*axes)[axis] = static_cast<int32_t>(std::clamp(value, least, kMost));
    }
  }

  void ReadKernel() {
    kernels::ConvGeometry& geometry = op_.sites.geometry;
    ReadAxes("kernel_size", proto_.kernel_size(), 1, &geometry.kernel_size);
    if (proto_.stride_size() > 0) ReadAxes("stride", proto_.stride(), 1, &geometry.stride);
    if (proto_.dilation_size() > 0) ReadAxes("dilation", proto_.dilation(), 1, &geometry.dilation);
    int64_t num_offsets = 1;
    for (int axis = 0; axis < dimension_; ++axis) num_offsets *= geometry.kernel_size[axis];
    if (num_offsets > kMaxKernelOffsets) {
      Report("its kernel has ", num_offsets, " cells; at most ", kMaxKernelOffsets, " are possible");
    }
  }

  // Odd kernels are centred, even ones start at the site.
  void CentrePadding() {
    if (proto_.padding_size() > 0) Report("padding belongs to RULE_PADDED alone");
    kernels::ConvGeometry& geometry = op_.sites.geometry;
    for (int axis = 0; axis < dimension_; ++axis) {
      const int32_t kernel_size = geometry.kernel_size[axis];
      geometry.padding[axis] = kernel_size % 2 == 1 ? geometry.dilation[axis] * (kernel_size - 1) / 2 : 0;
    }
  }

  // No cell may lie further from its site than a key can be moved.
  void CheckReach() {
    const kernels::ConvGeometry& geometry = op_.sites.geometry;
    for (int axis = 0; axis < dimension_; ++axis) {
      const int32_t last = geometry.DeltaOnAxis(axis, geometry.kernel_size[axis] - 1);
      const int32_t reach = std::max(geometry.padding[axis], last);
      if (reach > kernels::kCoordinateMargin) {
        Report("its kernel reaches ", reach, " sites on axis ", axis, "; at most ", kernels::kCoordinateMargin,
               " are possible");
      }
    }
  }

  void ReadBounds() {
    ReadBound("lower_bound", proto_.lower_bound(), &op_.sites.lower_bound);
    ReadBound("upper_bound", proto_.upper_bound(), &op_.sites.upper_bound);
    const auto& [lower, upper] = std::pair(op_.sites.lower_bound, op_.sites.upper_bound);
    if (!is_ok_ || (!lower && !upper)) return;
    if (op_.sites.geometry.StrideIsOneOrKernel()) {
      Report("bounds have no effect: RULE_EXPAND with stride 1 or kernel_size on every axis is RULE_FLOOR");
    }
    if (!lower || !upper) return;
    for (int axis = 0; axis < dimension_; ++axis) {
      if ((*lower)[axis] > (*upper)[axis]) {
        Report("lower_bound[", axis, "] ", (*lower)[axis], " is above upper_bound[", axis, "] ", (*upper)[axis]);
      }
    }
  }

  template <typename Values>
  void ReadBound(const char* name, const Values& values, std::optional<Axes>* bound) {
    if (values.empty()) return;
    if (values.size() != dimension_) {
      Report(name, " has ", values.size(), " values; the network has ", dimension_, " axes");
      return;
    }
    Axes axes = {0, 0, 0, 0};
    std::copy(values.begin(), values.end(), axes.begin());
    *bound = axes;
  }

  const SparseConv& proto_;
  const int dimension_;
  const ProblemsAt& at_;
  SparseConvOp op_;
  bool is_ok_ = true;
};

}  // namespace

std::optional<SparseConvOp> ReadSparseConv(const SparseConv& proto, int dimension, const ProblemsAt& at) {
  return SparseConvReader(proto, dimension, at).Read();
}

int ReadOutChannels(uint32_t out_channels, const ProblemsAt& at) {
  if (out_channels >= 1 && out_channels <= kMaxChannels) return static_cast<int>(out_channels);
  at.Add("out_channels is ", out_channels, "; it must be 1 to ", kMaxChannels);
  return 0;
}

}  // namespace voxserve
