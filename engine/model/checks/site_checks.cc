#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "engine/base/quoted.h"
#include "engine/model/checks/checks.h"

namespace voxserve {
namespace {

template <typename Values>
bool ReadBound(const char* name, const Values& values, int dimension, kernels::Axes* bound, const ProblemsAt& at) {
  if (values.empty()) return true;
  if (values.size() != dimension) {
    at.Add(name, " has ", values.size(), " values; the network has ", dimension, " axes");
    return false;
  }
  std::copy(values.begin(), values.end(), bound->begin());
  return true;
}

std::optional<SiteFilter> ReadCrop(const model::v1::Crop& proto, int dimension, const ProblemsAt& at) {
  SiteFilter filter;
  if (proto.lower_bound().empty() && proto.upper_bound().empty()) {
    at.Add("has neither lower_bound nor upper_bound");
    return std::nullopt;
  }
  const bool has_lower = ReadBound("lower_bound", proto.lower_bound(), dimension, &filter.lower, at);
  const bool has_upper = ReadBound("upper_bound", proto.upper_bound(), dimension, &filter.upper, at);
  if (!has_lower || !has_upper) return std::nullopt;
  bool is_ok = true;
  for (size_t axis = 0; axis < static_cast<size_t>(dimension); ++axis) {
    if (filter.lower[axis] < filter.upper[axis]) continue;
    at.Add("lower_bound[", axis, "] ", filter.lower[axis], " is not below upper_bound[", axis, "] ",
           filter.upper[axis]);
    is_ok = false;
  }
  return is_ok ? std::optional(filter) : std::nullopt;
}

}  // namespace

void CheckCrop(NodeContext& context) {
  context.node.op = CropOp();
  const std::optional<SiteFilter> filter = ReadCrop(context.proto.crop(), context.graph.dimension, context.at);
  const GraphNode* const input = context.FeaturesInput(0);
  if (!filter || input == nullptr) return;
  context.node.level = context.graph.levels.Filter(input->level, *filter);
  context.node.channels = input->channels;
  context.node.op =
      CropOp{context.graph.levels.SameSiteRulebook(input->level, context.node.level, context.graph.dimension)};
}

void CheckPrune(NodeContext& context) {
  const float threshold = context.proto.prune().threshold();
  context.node.op = PruneOp();
  const bool has_threshold = std::isfinite(threshold);
  if (!has_threshold) context.at.Add("threshold is ", threshold, "; it must be finite");
  const GraphNode* const input = context.FeaturesInput(0);
  const GraphNode* const scores = context.FeaturesInput(1);
  if (scores != nullptr && scores->channels != 1) {
    context.at.Add("its second input ", Quoted(scores->name), " has ", scores->channels, " channels; a score is one");
    return;
  }
  if (!has_threshold || input == nullptr || scores == nullptr) return;
  if (!scores->HasRowsOf(*input)) {
    context.at.Add("its scores ", Quoted(scores->name), " are not on the sites of ", Quoted(input->name));
    return;
  }
  context.node.level =
      context.graph.levels.Filter(input->level, {.score_node = context.node.inputs[1], .threshold = threshold});
  context.node.channels = input->channels;
  context.node.op =
      PruneOp{context.graph.levels.SameSiteRulebook(input->level, context.node.level, context.graph.dimension)};
}

std::vector<const GraphNode*> MeetInputs(model::v1::Sites sites, std::vector<int>* rulebooks, NodeContext& context) {
  if (sites != model::v1::SITES_UNION) {
    if (sites != model::v1::SITES_UNSPECIFIED && sites != model::v1::SITES_SAME) {
      context.at.Add("sites must be SITES_SAME or SITES_UNION");
    }
    std::vector<const GraphNode*> inputs = context.FeaturesOnOneLevel();
    if (!inputs.empty()) context.node.TakeRowsOf(*inputs[0]);
    return inputs;
  }
  std::vector<const GraphNode*> inputs;
  std::vector<int> levels;
  for (size_t i = 0; i < context.node.inputs.size(); ++i) {
    const GraphNode* const input = context.FeaturesInput(i);
    if (input == nullptr) continue;
    if (input->level < 0) {
      context.at.Add("its input ", Quoted(input->name), " has ", RowsText(*input), "; SITES_UNION is of sites");
    } else if (!inputs.empty() && !context.graph.levels.HaveOneUnit(inputs[0]->level, input->level)) {
      context.at.Add("its inputs ", Quoted(inputs[0]->name), " and ", Quoted(input->name),
                     " are on sites of different units");
    } else {
      inputs.push_back(input);
      levels.push_back(input->level);
    }
  }
  if (inputs.size() < context.node.inputs.size()) return {};
  context.node.level = context.graph.levels.Union(levels);
  if (std::count(levels.begin(), levels.end(), context.node.level) < static_cast<std::ptrdiff_t>(levels.size())) {
    for (const int level : levels) {
      rulebooks->push_back(context.graph.levels.SameSiteRulebook(level, context.node.level, context.graph.dimension));
    }
  }
  return inputs;
}

}  // namespace voxserve
