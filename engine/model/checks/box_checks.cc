#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"

namespace voxserve {
namespace {

using model::v1::AnchorHeadDecode;
using model::v1::CenterHeadDecode;
using model::v1::QueryDecode;

constexpr int kMostStride = 1024;

// Reads the parameters of one head. is_ok() is true while it has found no problem.
class HeadReader {
 public:
  explicit HeadReader(const ProblemsAt& at) : at_(at) {}

  bool is_ok() const { return is_ok_; }

  template <typename... Args>
  void Report(const Args&... what) {
    at_.Add(what...);
    is_ok_ = false;
  }

  void ReadMaxBoxes(uint32_t max_boxes, int32_t most, int32_t* to) {
    if (max_boxes < 1 || max_boxes > static_cast<uint32_t>(most)) {
      Report("max_boxes is ", max_boxes, "; it must be 1 to ", most);
    }
    *to = static_cast<int32_t>(max_boxes);
  }

  // below_one: the threshold must be below 1; otherwise 1 is allowed too.
  void ReadThreshold(float threshold, bool below_one, float* to) {
    if (!(threshold >= 0 && (below_one ? threshold < 1 : threshold <= 1))) {
      Report("score_threshold is ", threshold, "; it must be at least 0 and ", below_one ? "below" : "at most", " 1");
    }
    *to = threshold;
  }

  // Reads one value for all classes, or one for each; none leaves *to unchanged. below: the values' bound; 0 or more is
  // allowed below it.
  template <typename List>
  void ReadOfClasses(const char* name, const List& values, int32_t num_classes, float below,
                     std::array<float, kernels::kMaxHeadClasses>* to) {
    if (values.empty() || num_classes == 0) return;
    if (values.size() != 1 && values.size() != num_classes) {
      Report(name, " has ", values.size(), " values; it needs 1, or ", num_classes, ", one for each class");
      return;
    }
    for (int32_t k = 0; k < num_classes; ++k) {
      const int index = values.size() == 1 ? 0 : k;
      const float value = values.Get(index);
      if (!(value >= 0 && value < below) && k == index) {
        Report(name, "[", index, "] is ", value, "; it must be at least 0 and below ", below);
      }
      (*to)[static_cast<size_t>(k)] = value;
    }
  }

  void ReadFinite(const char* name, float value, float* to) {
    if (!std::isfinite(value)) Report(name, " is ", value, "; it must be finite");
    *to = value;
  }

  // what: what messages call the ids.
  void ReadClasses(const char* what, const std::vector<uint32_t>& ids, int32_t* count,
                   std::array<int32_t, kernels::kMaxHeadClasses>* to) {
    if (ids.empty() || ids.size() > to->size()) {
      Report("has ", ids.size(), " ", what, "; it must have 1 to ", to->size());
      return;
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] >= kMaxClasses) Report("class id ", ids[i], " is too large; ids are below ", kMaxClasses);
      if (std::count(ids.begin(), ids.begin() + static_cast<int64_t>(i), ids[i]) == 1) {
        Report("class id ", ids[i], " appears twice");
      }
      (*to)[i] = static_cast<int32_t>(ids[i]);
    }
    *count = static_cast<int32_t>(ids.size());
  }

  template <typename List>
  void ReadCenterBound(const char* name, const List& list, std::array<float, 3>* to) {
    if (list.empty()) return;
    if (list.size() != 3) {
      Report(name, " has ", list.size(), " values; it needs 3, or none");
      return;
    }
    for (int axis = 0; axis < 3; ++axis) ReadFinite(name, list.Get(axis), &(*to)[static_cast<size_t>(axis)]);
  }

  // Reads the stride and the bounds of centres.
  template <typename Proto, typename Head>
  void ReadPlaces(const Proto& proto, Head* head) {
    if (proto.stride() < 1 || proto.stride() > kMostStride) {
      Report("stride is ", proto.stride(), "; it must be 1 to ", kMostStride);
    }
    head->stride = static_cast<float>(proto.stride());
    ReadCenterBound("center_min", proto.center_min(), &head->center_min);
    ReadCenterBound("center_max", proto.center_max(), &head->center_max);
    for (size_t axis = 0; axis < 3 && is_ok(); ++axis) {
      if (head->center_min[axis] <= head->center_max[axis]) continue;
      Report("center_min[", axis, "] is ", head->center_min[axis], " and center_max[", axis, "] ",
             head->center_max[axis], "; no centre is within");
    }
  }

 private:
  const ProblemsAt& at_;
  bool is_ok_ = true;
};

void ReadIouPowers(const CenterHeadDecode& proto, kernels::CenterHead* head, HeadReader& reader) {
  if (proto.iou_powers().empty()) return;
  if (head->convention != kernels::CenterHeadConvention::kOpenPcdet) {
    reader.Report("has iou_powers, which only CONVENTION_OPENPCDET has");
  }
  if (proto.iou_powers_size() != head->num_classes && head->num_classes > 0) {
    reader.Report("iou_powers has ", proto.iou_powers_size(), " values; it needs one for each of the ",
                  head->num_classes, " classes, or none");
    return;
  }
  for (int k = 0; k < head->num_classes; ++k) {
    const float power = proto.iou_powers(k);
    if (!(power >= 0 && power <= 1)) reader.Report("iou_powers[", k, "] is ", power, "; it must be 0 to 1");
    head->iou_powers[static_cast<size_t>(k)] = power;
  }
}

std::optional<kernels::CenterHead> ReadCenterHead(const CenterHeadDecode& proto, const ProblemsAt& at) {
  HeadReader reader(at);
  kernels::CenterHead head;
  switch (proto.convention()) {
    case CenterHeadDecode::CONVENTION_OPENPCDET:
      head.convention = kernels::CenterHeadConvention::kOpenPcdet;
      break;
    case CenterHeadDecode::CONVENTION_DET3D:
      head.convention = kernels::CenterHeadConvention::kDet3d;
      break;
    default:
      reader.Report("convention must be CONVENTION_OPENPCDET or CONVENTION_DET3D");
  }
  reader.ReadClasses("class_ids", {proto.class_ids().begin(), proto.class_ids().end()}, &head.num_classes,
                     &head.class_ids);
  reader.ReadPlaces(proto, &head);
  reader.ReadThreshold(proto.score_threshold(), /*below_one=*/true, &head.score_threshold);
  reader.ReadMaxBoxes(proto.max_boxes(), kernels::kMaxBoxes, &head.max_boxes);
  ReadIouPowers(proto, &head, reader);
  return reader.is_ok() ? std::optional(head) : std::nullopt;
}

// select: null if it is not known.
std::optional<kernels::QueryDecodeParams> ReadQueryDecode(const QueryDecode& proto, const SelectOp* select,
                                                          const ProblemsAt& at) {
  HeadReader reader(at);
  kernels::QueryDecodeParams head;
  reader.ReadClasses("class_ids", {proto.class_ids().begin(), proto.class_ids().end()}, &head.num_classes,
                     &head.class_ids);
  reader.ReadOfClasses("score_thresholds", proto.score_thresholds(), head.num_classes, 1, &head.score_thresholds);
  reader.ReadOfClasses("min_rot_lengths", proto.min_rot_lengths(), head.num_classes,
                       std::numeric_limits<float>::infinity(), &head.min_rot_lengths);
  head.k = select == nullptr ? kernels::kMaxQueries : select->parameters.k;
  reader.ReadMaxBoxes(proto.max_boxes(), head.k, &head.max_boxes);
  reader.ReadPlaces(proto, &head);
  head.bounds_bottom = proto.bounds_bottom();
  switch (proto.height_of()) {
    case QueryDecode::HEIGHT_CENTER:
      head.height_of = kernels::QueryHeight::kCenter;
      break;
    case QueryDecode::HEIGHT_TOP:
      head.height_of = kernels::QueryHeight::kTop;
      break;
    default:
      reader.Report("height_of must be HEIGHT_CENTER or HEIGHT_TOP");
  }
  if (select != nullptr && reader.is_ok() && head.num_classes != select->parameters.num_classes) {
    reader.Report("has ", head.num_classes, " class_ids; its select has ", select->parameters.num_classes, " classes");
  }
  return reader.is_ok() ? std::optional(head) : std::nullopt;
}

void ReadAnchor(const AnchorHeadDecode::Anchor& proto, int index, HeadReader* reader,
                std::vector<kernels::AnchorBox>* anchors) {
  kernels::AnchorBox anchor;
  const std::string name = absl::StrCat("anchors[", index, "]");
  if (proto.size_size() != 3) {
    reader->Report(name, ".size has ", proto.size_size(), " values; it needs length, width and height");
  } else {
    for (int axis = 0; axis < 3; ++axis) {
      const float size = proto.size(axis);
      if (!(size > 0) || !std::isfinite(size)) {
        reader->Report(name, ".size[", axis, "] is ", size, "; it must be finite and above 0");
      }
      anchor.size[static_cast<size_t>(axis)] = size;
    }
  }
  reader->ReadFinite((name + ".bottom").c_str(), proto.bottom(), &anchor.bottom);
  if (proto.rotations().empty()) reader->Report(name, " has no rotations");
  for (const float rotation : proto.rotations()) {
    reader->ReadFinite((name + ".rotations").c_str(), rotation, &anchor.yaw);
    anchors->push_back(anchor);
  }
}

std::optional<kernels::AnchorHeadParams> ReadAnchorHead(const AnchorHeadDecode& proto, const ProblemsAt& at) {
  HeadReader reader(at);
  kernels::AnchorHeadParams head;
  std::vector<uint32_t> class_ids;
  std::vector<kernels::AnchorBox> anchors;
  for (int i = 0; i < proto.anchors_size(); ++i) {
    class_ids.push_back(proto.anchors(i).class_id());
    ReadAnchor(proto.anchors(i), i, &reader, &anchors);
  }
  reader.ReadClasses("anchors", class_ids, &head.num_classes, &head.class_ids);
  if (anchors.size() > head.anchors.size()) {
    reader.Report("has ", anchors.size(), " anchors per cell, rotations counted; at most ", head.anchors.size(),
                  " are possible");
    anchors.clear();
  }
  std::copy(anchors.begin(), anchors.end(), head.anchors.begin());
  head.num_anchors = static_cast<int32_t>(anchors.size());
  if (proto.num_direction_bins() < 1 || proto.num_direction_bins() > kernels::kMaxDirectionBins) {
    reader.Report("num_direction_bins is ", proto.num_direction_bins(), "; it must be 1 to ",
                  kernels::kMaxDirectionBins);
  }
  head.num_direction_bins = static_cast<int32_t>(proto.num_direction_bins());
  reader.ReadFinite("direction_offset", proto.direction_offset(), &head.direction_offset);
  reader.ReadFinite("direction_limit_offset", proto.direction_limit_offset(), &head.direction_limit_offset);
  reader.ReadThreshold(proto.score_threshold(), /*below_one=*/false, &head.score_threshold);
  reader.ReadMaxBoxes(proto.max_boxes(), kernels::kMaxBoxes, &head.max_boxes);
  return reader.is_ok() ? std::optional(head) : std::nullopt;
}

// Returns false and reports a problem if a sample has more box candidates than 31 bits can number.
bool FitsNumbers(const GridShape& image, int64_t candidates_a_cell, const ProblemsAt& at) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  if (image.num_cells() <= most / candidates_a_cell) return true;
  at.Add("has ", candidates_a_cell, " candidates in each of ", SizeText(image), " cells; at most ", most,
         " are possible");
  return false;
}

struct HeadImage {
  const char* name;  // for messages
  int channels;      // 0: not known
};

// Returns the grid of a node that computes an image; nullopt for other nodes.
std::optional<GridShape> ImageOf(const GraphNode& node) {
  return node.grid && node.grid->dimension == 2 ? node.grid : std::nullopt;
}

// For a node on sites, returns the grid of the image that the sites form when seen from above, if each site then has a
// cell of its own. For other nodes, returns ImageOf.
std::optional<GridShape> ImageOfSites(const GraphNode& node, const Graph& graph) {
  if (node.level < 0) return ImageOf(node);
  const std::optional<kernels::Axes>& shape = graph.levels.levels()[static_cast<size_t>(node.level)].spatial_shape;
  if (graph.dimension != 3 || !shape || (*shape)[2] != 1) return std::nullopt;
  return GridShape{.dimension = 2, .size = {(*shape)[1], (*shape)[0], 1, 1}};
}

// Returns the size of a head's images. `images` describes the inputs in their order. If the inputs do not match
// `images` or each other, returns nullopt, and reports a problem unless one was reported before. may_be_sites: the
// inputs may also be on the sites of one level; the returned size is then that of the sites' image (ImageOfSites).
std::optional<GridShape> HeadImages(const NodeContext& context, const std::vector<HeadImage>& images,
                                    bool may_be_sites) {
  const GraphNode* first = nullptr;
  std::optional<GridShape> first_size;
  bool is_ok = true;
  for (size_t i = 0; i < images.size(); ++i) {
    const GraphNode* const input = context.FeaturesInput(i);
    if (input == nullptr) {
      is_ok = false;
      continue;
    }
    const auto name = [&](size_t of, const GraphNode& read) {
      return absl::StrCat("its ", images[of].name, " ", Quoted(read.name));
    };
    const std::optional<GridShape> size = may_be_sites ? ImageOfSites(*input, context.graph) : ImageOf(*input);
    if (!size) {
      context.at.Add(name(i, *input), " has ",
                     input->grid ? absl::StrCat("cells of ", input->grid->dimension, " axes") : RowsText(*input),
                     may_be_sites
                         ? "; it must be an image, or have sites of 3 axes with a spatial shape of one cell on z"
                         : "; it must be an image");
      is_ok = false;
      continue;
    }
    if (images[i].channels > 0 && input->channels != images[i].channels) {
      context.at.Add(name(i, *input), " has ", input->channels, " channels; it needs ", images[i].channels);
      is_ok = false;
    }
    if (first == nullptr) {
      first = input;
      first_size = size;
    } else if (*size != *first_size) {
      context.at.Add(name(0, *first), " has ", SizeText(*first_size), " cells, ", name(i, *input), " ",
                     SizeText(*size));
      is_ok = false;
    } else if (input->level != first->level) {
      context.at.Add(name(0, *first), " and ", name(i, *input), " have different rows");
      is_ok = false;
    }
  }
  return is_ok && first != nullptr ? first_size : std::nullopt;
}

// Returns the operator of the voxelize node, whose range contains the boxes. If it has no range, returns null, and
// reports a problem unless one was reported before.
const VoxelizeOp* RangeOfBoxes(const NodeContext& context) {
  if (!context.voxelize.is_there || context.voxelize.is_broken) return nullptr;
  const VoxelizeOp& voxelize = context.graph.voxelize_op();
  if (!voxelize.grid_shape) {
    context.at.Add("needs a voxelize of ORIGIN_RANGE, in whose range its cells lie");
    return nullptr;
  }
  if (!BeginsWithSpatialAxes(voxelize)) {
    context.at.Add("needs axes that begin with x, y and z; they are ", absl::StrJoin(voxelize.axes, ", "));
    return nullptr;
  }
  return &voxelize;
}

// Returns true if an image of this size has a cell for every stride x stride voxels; otherwise reports a problem. what:
// how its text begins.
bool CoversVoxels(const char* what, const GridShape& image, const VoxelizeOp& voxelize, uint32_t stride,
                  const ProblemsAt& at) {
  const kernels::Axes& voxels = *voxelize.grid_shape;
  const auto step = static_cast<int32_t>(stride);
  const auto cells = [&](size_t axis) { return (voxels[axis] + step - 1) / step; };
  if (image.size[0] == cells(1) && image.size[1] == cells(0)) return true;
  at.Add(what, " ", SizeText(image), " cells; ", voxels[1], " x ", voxels[0], " voxels (y, x) at a stride of ", step,
         " are ", cells(1), " x ", cells(0));
  return false;
}

// Returns true if the inputs of a query_decode behind its select are rows of the select's queries; otherwise reports a
// problem unless one was reported before. `rows` describes them in their order.
bool AreRowsOfQueries(const NodeContext& context, const GraphNode& select, const std::vector<HeadImage>& rows) {
  bool is_ok = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const GraphNode* const input = context.FeaturesInput(i + 1);
    if (input == nullptr) {
      is_ok = false;
    } else if (!input->HasRowsOf(select)) {
      context.at.Add("its ", rows[i].name, " ", Quoted(input->name), " does not have the rows of its select ",
                     Quoted(select.name));
      is_ok = false;
    } else if (rows[i].channels > 0 && input->channels != rows[i].channels) {
      context.at.Add("its ", rows[i].name, " ", Quoted(input->name), " has ", input->channels, " channels; it needs ",
                     rows[i].channels);
      is_ok = false;
    }
  }
  return is_ok;
}

}  // namespace

void SetBoxes(int32_t max_boxes, GraphNode& node) {
  node.level = kSampleLevel;
  node.max_boxes = max_boxes;
  node.channels = kernels::kBoxColumns;
}

void CheckQueryDecode(NodeContext& context) {
  const QueryDecode& proto = context.proto.query_decode();
  const GraphNode* const first = context.Known(0);
  const auto* const select = first == nullptr ? nullptr : std::get_if<SelectOp>(&first->op);
  if (first != nullptr && select == nullptr) context.at.Add("its input ", Quoted(first->name), " is not a select");
  const std::optional<kernels::QueryDecodeParams> read = ReadQueryDecode(proto, select, context.at);
  QueryDecodeOp op{.head = read.value_or(kernels::QueryDecodeParams()), .has_velocity = proto.has_velocity()};
  context.node.op = op;
  const VoxelizeOp* const voxelize = RangeOfBoxes(context);
  if (!read || select == nullptr) return;
  std::vector<HeadImage> rows = {{"heatmap", read->num_classes}, {"center", 2}, {"height", 1}, {"dim", 3}, {"rot", 2}};
  if (op.has_velocity) rows.push_back({"vel", 2});
  if (context.node.inputs.size() != rows.size() + 1) {
    context.at.Add("has ", context.node.inputs.size(), " inputs; ", op.has_velocity ? "with" : "without",
                   " has_velocity it needs ", rows.size() + 1);
    return;
  }
  if (!AreRowsOfQueries(context, *first, rows) || voxelize == nullptr) return;
  const GridShape image{.dimension = 2, .size = {select->parameters.num_rows, select->parameters.num_columns, 1, 1}};
  if (!CoversVoxels("its select reads an image of", image, *voxelize, proto.stride(), context.at)) return;
  for (size_t axis = 0; axis < 2; ++axis) {
    op.head.voxel_size[axis] = voxelize->voxel_size[axis];
    op.head.range_min[axis] = voxelize->range_min[axis];
  }
  context.node.op = op;
  SetBoxes(op.head.max_boxes, context.node);
}

void CheckCenterHeadDecode(NodeContext& context) {
  const CenterHeadDecode& proto = context.proto.center_head_decode();
  const std::optional<kernels::CenterHead> read = ReadCenterHead(proto, context.at);
  CenterHeadDecodeOp op{.head = read.value_or(kernels::CenterHead()),
                        .has_velocity = proto.has_velocity(),
                        .has_iou = proto.iou_powers_size() > 0};
  context.node.op = op;
  std::vector<HeadImage> images = {
      {"heatmap", read ? read->num_classes : 0}, {"center", 2}, {"height", 1}, {"dim", 3}, {"rot", 2}};
  if (op.has_velocity) images.push_back({"vel", 2});
  if (op.has_iou) images.push_back({"iou", 1});
  if (context.node.inputs.size() != images.size()) {
    const bool are_known = std::count(context.node.inputs.begin(), context.node.inputs.end(), -1) == 0;
    if (are_known) {
      context.at.Add("has ", context.node.inputs.size(), " inputs; ", op.has_velocity ? "with" : "without",
                     " has_velocity", op.has_iou ? " and with iou_powers" : "", " it needs ", images.size());
    }
    return;
  }
  const std::optional<GridShape> image = HeadImages(context, images, /*may_be_sites=*/true);
  const VoxelizeOp* const voxelize = RangeOfBoxes(context);
  if (!read || !image || voxelize == nullptr) return;
  if (!CoversVoxels("its images have", *image, *voxelize, proto.stride(), context.at)) return;
  if (!FitsNumbers(*image, op.head.num_classes, context.at)) return;
  op.head.num_rows = image->size[0];
  op.head.num_columns = image->size[1];
  for (size_t axis = 0; axis < 2; ++axis) {
    op.head.voxel_size[axis] = voxelize->voxel_size[axis];
    op.head.range_min[axis] = voxelize->range_min[axis];
  }
  context.node.op = op;
  SetBoxes(op.head.max_boxes, context.node);
}

void CheckAnchorHeadDecode(NodeContext& context) {
  const std::optional<kernels::AnchorHeadParams> read = ReadAnchorHead(context.proto.anchor_head_decode(), context.at);
  AnchorHeadDecodeOp op{.head = read.value_or(kernels::AnchorHeadParams())};
  context.node.op = op;
  const int anchors = read ? read->num_anchors : 0;
  const std::optional<GridShape> image = HeadImages(context,
                                                    {{"scores", anchors * op.head.num_classes},
                                                     {"boxes", anchors * kernels::kAnchorResiduals},
                                                     {"directions", anchors * op.head.num_direction_bins}},
                                                    /*may_be_sites=*/false);
  const VoxelizeOp* const voxelize = RangeOfBoxes(context);
  if (!read || !image || voxelize == nullptr) return;
  if (!FitsNumbers(*image, int64_t{anchors} * op.head.num_classes, context.at)) return;
  op.head.num_rows = image->size[0];
  op.head.num_columns = image->size[1];
  for (size_t axis = 0; axis < 2; ++axis) {
    op.head.range_min[axis] = voxelize->range_min[axis];
    op.head.range_max[axis] = voxelize->range_max[axis];
  }
  context.node.op = op;
  SetBoxes(op.head.max_boxes, context.node);
}

}  // namespace voxserve
