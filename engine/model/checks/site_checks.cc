// Nodes whose sites are made of other nodes' sites: unions, crops, prunes.

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "engine/base/quoted.h"
#include "engine/model/checks/node_checker.h"
#include "engine/model/node_parameters.h"

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

}  // namespace

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

void NodeChecker::CheckCrop(const model::v1::Crop& proto, GraphNode* node, const ProblemsAt& at) {
  node->op = CropOp();
  const std::optional<SiteFilter> filter = ReadCrop(proto, graph_.dimension, at);
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  if (!filter || input == nullptr) return;
  node->level = graph_.levels.Filter(input->level, *filter);
  node->channels = input->channels;
  node->op = CropOp{graph_.levels.SameSiteRulebook(input->level, node->level, graph_.dimension)};
}

void NodeChecker::CheckPrune(const model::v1::Prune& proto, GraphNode* node, const ProblemsAt& at) {
  node->op = PruneOp();
  const bool has_threshold = std::isfinite(proto.threshold());
  if (!has_threshold) at.Add("threshold is ", proto.threshold(), "; it must be finite");
  const GraphNode* const input = FeaturesInput(*node, 0, at);
  const GraphNode* const scores = FeaturesInput(*node, 1, at);
  if (scores != nullptr && scores->channels != 1) {
    at.Add("its second input ", Quoted(scores->name), " has ", scores->channels, " channels; a score is one");
    return;
  }
  if (!has_threshold || input == nullptr || scores == nullptr) return;
  if (!scores->HasRowsOf(*input)) {
    at.Add("its scores ", Quoted(scores->name), " are not on the sites of ", Quoted(input->name));
    return;
  }
  node->level = graph_.levels.Filter(input->level, {.score_node = node->inputs[1], .threshold = proto.threshold()});
  node->channels = input->channels;
  node->op = PruneOp{graph_.levels.SameSiteRulebook(input->level, node->level, graph_.dimension)};
}

std::vector<const GraphNode*> NodeChecker::MeetInputs(model::v1::Sites sites, std::vector<int>* rulebooks,
                                                      GraphNode* node, const ProblemsAt& at) {
  if (sites != model::v1::SITES_UNION) {
    if (sites != model::v1::SITES_UNSPECIFIED && sites != model::v1::SITES_SAME) {
      at.Add("sites must be SITES_SAME or SITES_UNION");
    }
    std::vector<const GraphNode*> inputs = FeaturesOnOneLevel(*node, at);
    if (!inputs.empty()) node->TakeRowsOf(*inputs[0]);
    return inputs;
  }
  std::vector<const GraphNode*> inputs;
  std::vector<int> levels;
  for (size_t i = 0; i < node->inputs.size(); ++i) {
    const GraphNode* const input = FeaturesInput(*node, i, at);
    if (input == nullptr) continue;
    if (input->level < 0) {
      at.Add("its input ", Quoted(input->name), " has ", RowsText(*input), "; SITES_UNION is of sites");
    } else if (!inputs.empty() && !graph_.levels.HaveOneUnit(inputs[0]->level, input->level)) {
      at.Add("its inputs ", Quoted(inputs[0]->name), " and ", Quoted(input->name), " are on sites of different units");
    } else {
      inputs.push_back(input);
      levels.push_back(input->level);
    }
  }
  if (inputs.size() < node->inputs.size()) return {};
  node->level = graph_.levels.Union(levels);
  if (std::count(levels.begin(), levels.end(), node->level) < static_cast<std::ptrdiff_t>(levels.size())) {
    for (const int level : levels) {
      rulebooks->push_back(graph_.levels.SameSiteRulebook(level, node->level, graph_.dimension));
    }
  }
  return inputs;
}

}  // namespace voxserve
