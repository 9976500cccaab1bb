#include "engine/ops/conv/distinct_groupings.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace voxserve {
namespace {

using kernels::Grouping;
using kernels::GroupingOptions;

constexpr int kNumEpsilons = 21;     // values of epsilon: 0, 0.05, ... 1
constexpr int kNumBmmMaxRows = 50;   // values of S; the last one stands for no limit
constexpr int kLowestBmmRows = 256;  // values of S grow by a factor of 2^(1/4), from 256 to 1,048,576
constexpr int kBmmRowsPerOctave = 4;

GroupingOptions Adaptive(int epsilon, int bmm_max_rows) {
  GroupingOptions options{
      .grouping = Grouping::kAdaptive, .epsilon = epsilon * 0.05, .bmm_max_rows = kernels::kNoLimit};
  if (bmm_max_rows + 1 < kNumBmmMaxRows) {
    options.bmm_max_rows =
        std::llround(kLowestBmmRows * std::exp2(static_cast<double>(bmm_max_rows) / kBmmRowsPerOctave));
  }
  return options;
}

// Parameters of the grouping ADAPTIVE that all make the same groups.
struct Agreeing {
  std::vector<kernels::MatmulGroup> groups;
  std::vector<std::pair<int, int>> parameters;  // indices of epsilon and S

  // Returns the parameters that are nearest to the mean of all. They are the most likely to make the same groups for
  // the next scan's kernel maps, too.
  GroupingOptions Middle() const {
    double epsilon = 0, rows = 0;
    for (const auto& [e, s] : parameters) {
      epsilon += e;
      rows += s;
    }
    const auto count = static_cast<double>(parameters.size());
    const auto distance = [&](const std::pair<int, int>& p) {
      return std::hypot((p.first - epsilon / count) / kNumEpsilons, (p.second - rows / count) / kNumBmmMaxRows);
    };
    const auto nearest = std::min_element(parameters.begin(), parameters.end(),
                                          [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    return Adaptive(nearest->first, nearest->second);
  }
};

}  // namespace

std::vector<GroupingOptions> DistinctGroupings(const kernels::MatmulGroupingParams& maps, const GroupingOptions& base) {
  std::vector<GroupingOptions> distinct = {base};
  std::vector<std::vector<kernels::MatmulGroup>> seen = {GroupMatmuls(maps, base).groups};
  for (const Grouping grouping : {Grouping::kSeparate, Grouping::kSymmetric, Grouping::kFixed}) {
    std::vector<kernels::MatmulGroup> groups = GroupMatmuls(maps, {.grouping = grouping}).groups;
    if (std::find(seen.begin(), seen.end(), groups) != seen.end()) continue;
    seen.push_back(std::move(groups));
    distinct.push_back({.grouping = grouping});
  }
  std::vector<Agreeing> classes;
  for (int e = 0; e < kNumEpsilons; ++e) {
    for (int s = 0; s < kNumBmmMaxRows; ++s) {
      std::vector<kernels::MatmulGroup> groups = GroupMatmuls(maps, Adaptive(e, s)).groups;
      if (std::find(seen.begin(), seen.end(), groups) != seen.end()) continue;
      auto of = std::find_if(classes.begin(), classes.end(), [&](const Agreeing& a) { return a.groups == groups; });
      if (of == classes.end()) of = classes.insert(of, {.groups = std::move(groups), .parameters = {}});
      of->parameters.emplace_back(e, s);
    }
  }
  for (const Agreeing& agreeing : classes) distinct.push_back(agreeing.Middle());
  return distinct;
}

}  // namespace voxserve
