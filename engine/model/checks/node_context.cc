#include "engine/model/checks/node_context.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"

namespace voxserve {

const GraphNode* NodeContext::FeaturesInput(size_t input) const {
  const GraphNode* const source = Known(input);
  if (source == nullptr) return nullptr;
  const bool is_sample = std::holds_alternative<FarthestPointSampleOp>(source->op);
  if (!source->is_labels && !is_sample && !source->is_selection && source->max_boxes == 0) return source;
  at.Add("its input ", Quoted(source->name),
         is_sample              ? " is a sample of points; only voxelize reads that"
         : source->is_labels    ? " computes labels; only voxel_to_point reads those"
         : source->is_selection ? " selects queries; only gather and query_decode read those"
                                : " computes boxes; only nms and outputs read those");
  return nullptr;
}

std::vector<const GraphNode*> NodeContext::FeaturesOnOneLevel() const {
  std::vector<const GraphNode*> inputs;
  for (size_t i = 0; i < node.inputs.size(); ++i) inputs.push_back(FeaturesInput(i));
  if (std::count(inputs.begin(), inputs.end(), nullptr) > 0) return {};
  for (const GraphNode* input : inputs) {
    if (!input->HasRowsOf(*inputs[0])) {
      at.Add("its inputs ", Quoted(inputs[0]->name), " and ", Quoted(input->name),
             input->level >= 0 && inputs[0]->level >= 0 ? " are on different sites" : " have different rows");
      return {};
    }
  }
  return inputs;
}

const char* RowsText(const GraphNode& node) {
  if (node.level == kPointLevel) return "one row per point";
  if (node.level >= 0) return "one row per site";
  return node.grid ? "one row per cell" : node.max_boxes > 0 ? "boxes" : "one row per sample";
}

std::string SizeText(const GridShape& grid) {
  return absl::StrJoin(grid.size.begin(), grid.size.begin() + grid.dimension, " x ");
}

}  // namespace voxserve
