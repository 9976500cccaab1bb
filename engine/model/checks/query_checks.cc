#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"

namespace voxserve {
namespace {

using model::v1::Gather;
using model::v1::Select;

// Reads the parameters of a select that do not depend on its input. Returns false if it has reported a problem.
bool ReadSelect(const Select& proto, const ProblemsAt& at, kernels::SelectPeaksParams* to) {
  bool is_ok = true;
  if (proto.k() < 1 || proto.k() > kernels::kMaxQueries) {
    at.Add("k is ", proto.k(), "; it must be 1 to ", kernels::kMaxQueries);
    is_ok = false;
  }
  const uint32_t kernel = proto.peak_kernel();
  if (kernel < 1 || kernel > kernels::kMaxPeakKernel || kernel % 2 == 0) {
    at.Add("peak_kernel is ", kernel, "; it must be odd and 1 to ", kernels::kMaxPeakKernel);
    is_ok = false;
  }
  switch (proto.border()) {
    case Select::BORDER_DROP:
      to->border = kernels::PeakBorder::kDrop;
      break;
    case Select::BORDER_KEEP:
      to->border = kernels::PeakBorder::kKeep;
      break;
    case Select::BORDER_PAD:
      to->border = kernels::PeakBorder::kPad;
      break;
    default:
      if (kernel == 1) break;  // the window of a cell does not leave the image
      at.Add("border must be BORDER_DROP, BORDER_KEEP or BORDER_PAD");
      is_ok = false;
  }
  to->k = static_cast<int32_t>(proto.k());
  to->peak_kernel = static_cast<int32_t>(kernel);
  return is_ok;
}

// Reads the input's size and its classes. Returns false if it has reported a problem.
bool ReadScores(const GraphNode& scores, const Select& proto, const ProblemsAt& at, kernels::SelectPeaksParams* to) {
  if (!scores.grid || scores.grid->dimension != 2) {
    at.Add("its input ", Quoted(scores.name), " has ",
           scores.grid ? absl::StrCat("cells of ", scores.grid->dimension, " axes") : RowsText(scores),
           "; it needs an image");
    return false;
  }
  if (scores.channels > kernels::kMaxHeadClasses) {
    at.Add("its input ", Quoted(scores.name), " has ", scores.channels, " channels; at most ", kernels::kMaxHeadClasses,
           " classes are possible");
    return false;
  }
  const int64_t num_pairs = scores.grid->num_cells() * scores.channels;
  if (num_pairs > std::numeric_limits<int32_t>::max() ||
      std::max(scores.grid->size[0], scores.grid->size[1]) > kernels::kMaxSelectionSide) {
    at.Add("its input ", Quoted(scores.name), " has ", scores.channels, " classes in ", SizeText(*scores.grid),
           " cells; at most ", std::numeric_limits<int32_t>::max(), " pairs of both, ", kernels::kMaxSelectionSide,
           " rows and as many columns are possible");
    return false;
  }
  if (to->k > num_pairs) {
    at.Add("k is ", to->k, ", and its input ", Quoted(scores.name), " has ", scores.channels, " classes in ",
           SizeText(*scores.grid), " cells");
    return false;
  }
  to->num_rows = scores.grid->size[0];
  to->num_columns = scores.grid->size[1];
  to->num_classes = scores.channels;
  bool is_ok = true;
  for (const uint32_t index : proto.classes_without_peak_test()) {
    if (index >= static_cast<uint32_t>(to->num_classes)) {
      at.Add("classes_without_peak_test has ", index, "; its input ", Quoted(scores.name), " has ", to->num_classes,
             " channels");
      is_ok = false;
    } else if (to->classes_without_test[index]) {
      at.Add("classes_without_peak_test has ", index, " twice");
      is_ok = false;
    } else {
      to->classes_without_test[index] = true;
    }
  }
  return is_ok;
}

}  // namespace

void CheckSelect(NodeContext& context) {
  const Select& proto = context.proto.select();
  SelectOp op;
  const bool is_read = ReadSelect(proto, context.at, &op.parameters);
  const GraphNode* const scores = context.FeaturesInput(0);
  context.node.is_selection = true;
  if (is_read && scores != nullptr && ReadScores(*scores, proto, context.at, &op.parameters)) {
    context.node.level = kSampleLevel;
    context.node.channels = kernels::kSelectionColumns;
    if (op.parameters.k > 1) context.node.grid = GridShape{.dimension = 1, .size = {op.parameters.k, 1, 1, 1}};
  }
  context.node.op = op;
}

void CheckGather(NodeContext& context) {
  GatherOp op;
  context.node.op = op;
  switch (context.proto.gather().of()) {
    case Gather::OF_FEATURES:
      op.of = kernels::GatherOf::kFeatures;
      break;
    case Gather::OF_CLASS:
      op.of = kernels::GatherOf::kClass;
      break;
    case Gather::OF_SCORE:
      op.of = kernels::GatherOf::kScore;
      break;
    case Gather::OF_POSITION:
      op.of = kernels::GatherOf::kPosition;
      break;
    default:
      context.at.Add("of must be OF_FEATURES, OF_CLASS, OF_SCORE or OF_POSITION");
      return;
  }
  context.node.op = op;
  const bool reads_image = op.of == kernels::GatherOf::kFeatures;
  if (context.node.inputs.size() != (reads_image ? 2 : 1)) {
    context.at.Add("has ", context.node.inputs.size(), " inputs; ",
                   reads_image ? "OF_FEATURES needs 2, an image and a select" : "it needs 1, a select");
    return;
  }
  const GraphNode* const image = reads_image ? context.FeaturesInput(0) : nullptr;
  const GraphNode* const select = context.Known(reads_image ? 1 : 0);
  if (select == nullptr || (reads_image && image == nullptr)) return;
  if (!select->is_selection) {
    context.at.Add("its ", reads_image ? "second " : "", "input ", Quoted(select->name), " is not a select");
    return;
  }
  const kernels::SelectPeaksParams& selected = std::get<SelectOp>(select->op).parameters;
  const GridShape size{.dimension = 2, .size = {selected.num_rows, selected.num_columns, 1, 1}};
  if (reads_image && image->grid != size) {
    context.at.Add("its image ", Quoted(image->name), " has ",
                   image->grid ? absl::StrCat(SizeText(*image->grid), " cells") : RowsText(*image),
                   ", that of the select ", Quoted(select->name), " has ", SizeText(size));
    return;
  }
  context.node.TakeRowsOf(*select);
  context.node.channels = reads_image ? image->channels : op.of == kernels::GatherOf::kPosition ? 2 : 1;
}

}  // namespace voxserve
