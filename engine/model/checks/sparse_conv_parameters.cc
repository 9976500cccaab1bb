#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "engine/model/checks/checks.h"
#include "kernels/coordinates/coordinate_key.h"

namespace voxserve {
namespace {

constexpr int kMaxKernelOffsets = 4096;  // cells of a kernel

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
      case SparseConv::KIND_TRANSPOSED:
        op_.kind = SparseConvOp::Kind::kTransposed;
        ReadTransposed();
        break;
      case SparseConv::KIND_GENERATIVE:
        op_.kind = SparseConvOp::Kind::kTransposed;
        ReadGenerative();
        break;
      default:
        Report("kind must be KIND_SUBMANIFOLD, KIND_STRIDED, KIND_INVERSE, KIND_TRANSPOSED or KIND_GENERATIVE");
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

  void RefuseSites() {
    if (!proto_.sites_of().empty()) Report("sites_of belongs to KIND_STRIDED and KIND_TRANSPOSED alone");
  }

  void RefuseOutputPadding() {
    if (proto_.output_padding_size() > 0) Report("output_padding belongs to KIND_TRANSPOSED without sites_of alone");
  }

  void RefuseBounds() {
    if (proto_.lower_bound_size() > 0) Report("lower_bound belongs to RULE_EXPAND alone");
    if (proto_.upper_bound_size() > 0) Report("upper_bound belongs to RULE_EXPAND alone");
  }

  void ReadSubmanifold() {
    RefuseRule("KIND_SUBMANIFOLD");
    RefusePartner();
    RefuseSites();
    RefuseOutputPadding();
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
    RefuseOutputPadding();
    ReadKernel();
    if (!proto_.sites_of().empty()) {
      if (proto_.rule() != SparseConv::RULE_UNSPECIFIED) {
        Report("sites_of replaces a rule; leave one out");
      }
      RefuseBounds();
      ReadPaddingOfGivenSites();
      CheckReach();
      return;
    }
    switch (proto_.rule()) {
      case SparseConv::RULE_FLOOR:
        op_.sites.rule = CoordinateRule::kFloor;
        RefuseBounds();
        CentrePadding();
        break;
      case SparseConv::RULE_PADDED:
        op_.sites.rule = CoordinateRule::kPadded;
        RefuseList("RULE_PADDED");
        RefuseBounds();
        ReadPadding();
        break;
      case SparseConv::RULE_EXPAND:
        op_.sites.rule = CoordinateRule::kExpand;
        RefuseList("RULE_EXPAND");
        CentrePadding();
        ReadBounds();
        break;
      default:
        Report("rule must be RULE_FLOOR, RULE_PADDED or RULE_EXPAND");
    }
    CheckReach();
  }

  void ReadTransposed() {
    RefuseRule("KIND_TRANSPOSED");
    RefusePartner();
    RefuseBounds();
    ReadKernel();
    op_.sites.rule = CoordinateRule::kTransposed;
    if (proto_.sites_of().empty()) {
      RefuseList("KIND_TRANSPOSED without sites_of");
      ReadPadding();
      if (proto_.output_padding_size() > 0) {
        ReadAxes("output_padding", proto_.output_padding(), 0, &op_.sites.output_padding);
      }
    } else {
      RefuseOutputPadding();
      ReadPaddingOfGivenSites();
    }
    CheckReach();
  }

  void ReadGenerative() {
    RefuseRule("KIND_GENERATIVE");
    RefusePartner();
    RefuseSites();
    RefuseOutputPadding();
    RefuseBounds();
    ReadKernel();
    op_.sites.rule = CoordinateRule::kGenerative;
    CentrePadding();
    CheckReach();
  }

  void ReadInverse() {
    RefuseRule("KIND_INVERSE");
    RefuseSites();
    RefuseOutputPadding();
    RefuseBounds();
    if (proto_.paired_with().empty()) Report("KIND_INVERSE needs paired_with");
    for (const auto& [name, size] : {std::pair{"kernel_size", proto_.kernel_size_size()},
                                     {"stride", proto_.stride_size()},
                                     {"dilation", proto_.dilation_size()},
                                     {"padding", proto_.padding_size()},
                                     {"kernel_shape", proto_.kernel_shape() == SparseConv::KERNEL_SHAPE_BOX ? 0 : 1},
                                     {"offsets", proto_.offsets_size()}}) {
      if (size > 0) Report(name, " comes from the node in paired_with; leave it out");
    }
  }

  // Reads one value per axis. Reports a value below `least` or above kCoordinateMargin.
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
    if (proto_.stride_size() > 0) ReadAxes("stride", proto_.stride(), 1, &geometry.stride);
    if (proto_.dilation_size() > 0) ReadAxes("dilation", proto_.dilation(), 1, &geometry.dilation);
    if (proto_.offsets_size() > 0) {
      ReadOffsets();
      return;
    }
    ReadAxes("kernel_size", proto_.kernel_size(), 1, &geometry.kernel_size);
    if (!is_ok_) return;
    if (proto_.kernel_shape() == SparseConv::KERNEL_SHAPE_CROSS) {
      ListCross();
      return;
    }
    if (proto_.kernel_shape() != SparseConv::KERNEL_SHAPE_BOX) {
      Report("kernel_shape must be KERNEL_SHAPE_BOX or KERNEL_SHAPE_CROSS");
    }
    int64_t num_offsets = 1;
    for (int axis = 0; axis < dimension_; ++axis) num_offsets *= geometry.kernel_size[axis];
    if (num_offsets > kMaxKernelOffsets) {
      Report("its kernel has ", num_offsets, " cells; at most ", kMaxKernelOffsets, " are possible");
    }
  }

  bool IsListed() const { return proto_.offsets_size() > 0 || proto_.kernel_shape() != SparseConv::KERNEL_SHAPE_BOX; }

  void RefuseList(const char* what) {
    if (IsListed()) Report("kernel_shape and offsets do not go with ", what, "; its kernel is a box");
  }

  void ReadOffsets() {
    kernels::ConvGeometry& geometry = op_.sites.geometry;
    if (proto_.kernel_size_size() > 0 || proto_.kernel_shape() != SparseConv::KERNEL_SHAPE_BOX) {
      Report("offsets replace kernel_size and kernel_shape; leave those out");
    }
    if (proto_.offsets_size() % dimension_ != 0) {
      Report("offsets has ", proto_.offsets_size(), " values; ", dimension_, " make an offset");
      return;
    }
    std::vector<Axes> offsets(static_cast<size_t>(proto_.offsets_size() / dimension_), Axes{0, 0, 0, 0});
    Axes least = {0, 0, 0, 0};
    for (int axis = 0; axis < dimension_; ++axis) {
      int64_t min = proto_.offsets(axis), max = min;
      for (size_t k = 0; k < offsets.size(); ++k) {
        const int32_t value = proto_.offsets(static_cast<int>(k) * dimension_ + axis);
        offsets[k][static_cast<size_t>(axis)] = value;
        min = std::min<int64_t>(min, value);
        max = std::max<int64_t>(max, value);
      }
      const int64_t reach = std::max(std::abs(min), std::abs(max)) * geometry.dilation[axis];
      if (reach > kernels::kCoordinateMargin) {
        ReportReach(reach, axis);
        return;
      }
      if (max - min >= kernels::kCoordinateMargin) {
        Report("its offsets span ", max - min + 1, " sites on axis ", axis, "; at most ", kernels::kCoordinateMargin,
               " are possible");
        return;
      }
      least[axis] = static_cast<int32_t>(min);
      geometry.kernel_size[axis] = static_cast<int32_t>(max - min + 1);
      geometry.padding[axis] = -geometry.dilation[axis] * least[axis];
    }
    std::vector<int32_t> cells;
    for (const Axes& offset : offsets) {
      int32_t cell = 0;
      for (int axis = 0; axis < dimension_; ++axis) {
        cell = cell * geometry.kernel_size[axis] + offset[axis] - least[axis];
      }
      cells.push_back(cell);
    }
    List(cells);
  }

  // Lists the cells of a cross: the centre, then the other cells axis by axis.
  void ListCross() {
    const kernels::ConvGeometry& geometry = op_.sites.geometry;
    for (int axis = 0; axis < dimension_; ++axis) {
      if (geometry.kernel_size[axis] % 2 == 1) continue;
      Report("kernel_size[", axis, "] is ", geometry.kernel_size[axis], "; a cross has odd sizes");
      return;
    }
    const int32_t centre = geometry.Volume() / 2;
    std::vector<int32_t> cells = {centre};
    int32_t step = geometry.Volume();  // difference of the numbers of two neighbouring cells on the axis
    for (int axis = 0; axis < dimension_; ++axis) {
      step /= geometry.kernel_size[axis];
      for (int32_t at = -(geometry.kernel_size[axis] / 2); at <= geometry.kernel_size[axis] / 2; ++at) {
        if (at != 0) cells.push_back(centre + at * step);
      }
    }
    List(cells);
  }

  // Sets the kernel's cells. cells: in the order of the file.
  void List(const std::vector<int32_t>& cells) {
    if (cells.size() > kernels::kMaxListedCells) {
      Report("its kernel lists ", cells.size(), " cells; at most ", kernels::kMaxListedCells, " are possible");
      return;
    }
    op_.stored_cells.resize(cells.size());
    std::iota(op_.stored_cells.begin(), op_.stored_cells.end(), 0);
    std::stable_sort(op_.stored_cells.begin(), op_.stored_cells.end(), [&](int32_t a, int32_t b) {
      return cells[static_cast<size_t>(a)] < cells[static_cast<size_t>(b)];
    });
    kernels::ConvGeometry& geometry = op_.sites.geometry;
    geometry.num_listed_cells = static_cast<int32_t>(cells.size());
    for (size_t k = 0; k < cells.size(); ++k) {
      const int32_t stored = op_.stored_cells[k];
      geometry.listed_cells[k] = cells[static_cast<size_t>(stored)];
      if (k == 0 || geometry.listed_cells[k] != geometry.listed_cells[k - 1]) continue;
      Report("offset number ", stored, " appears twice");
      return;
    }
    if (geometry.num_listed_cells < geometry.Volume()) return;
    geometry.num_listed_cells = 0;  // the cells fill the box, so no list is needed
    geometry.listed_cells = {};
  }

  void ReadPadding() {
    if (proto_.padding_size() > 0) ReadAxes("padding", proto_.padding(), 0, &op_.sites.geometry.padding);
  }

  void ReadPaddingOfGivenSites() {
    if (proto_.padding_size() > 0 && !IsListed()) {
      ReadPadding();
    } else {
      CentrePadding();
    }
  }

  // Sets the default padding: odd kernels are centred, even ones start at the site.
  void CentrePadding() {
    if (proto_.padding_size() > 0) {
      Report("padding belongs to boxes of RULE_PADDED, KIND_TRANSPOSED or sites_of alone");
    }
    if (proto_.offsets_size() > 0) return;  // `offsets` has set the padding
    kernels::ConvGeometry& geometry = op_.sites.geometry;
    for (int axis = 0; axis < dimension_; ++axis) {
      const int32_t kernel_size = geometry.kernel_size[axis];
      geometry.padding[axis] = kernel_size % 2 == 1 ? geometry.dilation[axis] * (kernel_size - 1) / 2 : 0;
    }
  }

  // Reports kernel cells that are farther from the centre site than kCoordinateMargin, the largest distance by which a
  // coordinate key may be moved.
  void CheckReach() {
    const kernels::ConvGeometry& geometry = op_.sites.geometry;
    for (int axis = 0; axis < dimension_; ++axis) {
      const int32_t last = geometry.DeltaOnAxis(axis, geometry.kernel_size[axis] - 1);
      const int32_t reach = std::max(geometry.padding[axis], last);
      if (reach > kernels::kCoordinateMargin) ReportReach(reach, axis);
    }
  }

  void ReportReach(int64_t reach, int axis) {
    Report("its kernel reaches ", reach, " sites on axis ", axis, "; at most ", kernels::kCoordinateMargin,
           " are possible");
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

}  // namespace voxserve
