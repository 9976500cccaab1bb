#include "engine/tuner/plan_candidates.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace voxserve {
namespace {

using kernels::Grouping;
using kernels::GroupingOptions;

constexpr int kNumEpsilons = 21;     // 0, 0.05, ... 1
constexpr int kNumBmmMaxRows = 50;   // the last is no limit
constexpr int kLowestBmmRows = 256;  // a quarter of an octave from one to the next: 256 to 1,048,576
constexpr int kBmmRowsPerOctave = 4;
constexpr int kCpuBlockRows[] = {0, 64, 128, 256, 512, 1024, 2048};

GroupingOptions Adaptive(int epsilon, int bmm_max_rows) {
  GroupingOptions options{
      .grouping = Grouping::kAdaptive, .epsilon = epsilon * 0.05, .bmm_max_rows = kernels::kNoLimit};
  if (bmm_max_rows + 1 < kNumBmmMaxRows) {
    options.bmm_max_rows =
        std::llround(kLowestBmmRows * std::exp2(static_cast<double>(bmm_max_rows) / kBmmRowsPerOctave));
  }
  return options;
}

// Parameters of ADAPTIVE that make the same groups.
struct Agreeing {
  std::vector<kernels::MatmulGroup> groups;
  std::vector<std::pair<int, int>> parameters;  // indices of epsilon and S

  // The one nearest to their mean: the likeliest to agree for the next scan's maps as well.
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

kernels::MatmulGroupingParams MapsOf(const ProgramRulebook& rulebook, const std::vector<int64_t>& offset_begin) {
  const RulebookSpec& spec = rulebook.spec;
  const auto num_offsets = static_cast<int32_t>(offset_begin.size()) - 1;
  const bool is_symmetric = spec.geometry.IsSymmetric();
  return {.num_offsets = num_offsets,
          .offset_begin = offset_begin.data(),
          .is_symmetric = is_symmetric,
          .identity_offset = is_symmetric && spec.in_level == spec.out_level ? num_offsets / 2 : -1};
}

// Each convolution's candidates besides its default, by position; kernels of one offset have nothing to group.
std::vector<NetworkPlan> GroupingCandidates(const Program& program, const NetworkPlan& defaults,
                                            const RulebookSizes& sizes) {
  std::vector<NetworkPlan> candidates(program.convs.size());
  for (size_t c = 0; c < program.convs.size(); ++c) {
    const auto rulebook = static_cast<size_t>(program.convs[c].rulebook);
    if (rulebook >= sizes.size() || sizes[rulebook].empty()) continue;
    std::vector<int64_t> offset_begin = {0};
    for (const int64_t size : sizes[rulebook]) offset_begin.push_back(offset_begin.back() + size);
    ConvPlan plan = AsGatherGemmScatter(defaults[c]);
    const std::vector<GroupingOptions> groupings =
        DistinctGroupings(MapsOf(program.rulebooks[rulebook], offset_begin), plan.grouping);
    for (const GroupingOptions& grouping : groupings) {
      plan.grouping = grouping;
      if (plan != defaults[c]) candidates[c].push_back(plan);
    }
  }
  return candidates;
}

std::vector<NetworkPlan> BlockCandidates(const Program& program, const NetworkPlan& defaults) {
  std::vector<NetworkPlan> candidates(program.convs.size());
  for (size_t c = 0; c < program.convs.size(); ++c) {
    ConvPlan plan = defaults[c];
    for (const int rows : kCpuBlockRows) {
      plan.block_rows = rows;
      if (plan != defaults[c]) candidates[c].push_back(plan);
    }
  }
  return candidates;
}

// Together in one run: what a kernel finds in the caches then is what it will find.
void AppendFetchOnDemandRuns(const Program& program, const NetworkPlan& defaults, std::vector<NetworkPlan>& runs) {
  std::set<int32_t> block_rows;
  for (const ProgramConv& conv : program.convs) {
    block_rows.insert(conv.fetch_on_demand_rows.begin(), conv.fetch_on_demand_rows.end());
  }
  for (const int32_t rows : block_rows) {
    NetworkPlan run = defaults;
    for (size_t c = 0; c < run.size(); ++c) {
      const std::vector<int32_t>& served = program.convs[c].fetch_on_demand_rows;
      if (std::find(served.begin(), served.end(), rows) == served.end()) continue;
      run[c].dataflow = Dataflow::kFetchOnDemand;
      run[c].block_rows = rows;
    }
    runs.push_back(std::move(run));
  }
}

const char* NameOf(kernels::MapSearch search) {
  switch (search) {
    case kernels::MapSearch::kMerge:
      return "MERGE";
    case kernels::MapSearch::kGrid:
      return "GRID";
    case kernels::MapSearch::kHash:
      break;
  }
  return "HASH";
}

std::string NameOf(const GroupingOptions& options) {
  switch (options.grouping) {
    case Grouping::kSeparate:
      return "SEPARATE";
    case Grouping::kSymmetric:
      return "SYMMETRIC";
    case Grouping::kFixed:
      return "FIXED";
    case Grouping::kAdaptive:
      break;
  }
  const std::string rows =
      options.bmm_max_rows == kernels::kNoLimit ? std::string("inf") : absl::StrCat(options.bmm_max_rows);
  return absl::StrFormat("ADAPTIVE(%.2f, %s)", options.epsilon, rows);
}

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

std::vector<NetworkPlan> CandidateRuns(const Program& program, const NetworkPlan& defaults,
                                       const RulebookSizes& sizes) {
  const bool is_on_cuda = !program.convs.empty() && program.convs.front().is_on_cuda;
  const std::vector<NetworkPlan> candidates =
      is_on_cuda ? GroupingCandidates(program, defaults, sizes) : BlockCandidates(program, defaults);
  size_t num_runs = 0;
  for (const NetworkPlan& of_conv : candidates) num_runs = std::max(num_runs, of_conv.size());
  std::vector<NetworkPlan> runs = {defaults};
  for (size_t r = 0; r < num_runs; ++r) {
    NetworkPlan& run = runs.emplace_back(defaults);
    for (size_t c = 0; c < run.size(); ++c) {
      if (r < candidates[c].size()) run[c] = candidates[c][r];
    }
  }
  if (is_on_cuda) AppendFetchOnDemandRuns(program, defaults, runs);
  return runs;
}

std::vector<kernels::MapSearch> MapSearches(bool is_on_cuda) {
  if (is_on_cuda) return {kernels::MapSearch::kHash, kernels::MapSearch::kGrid};
  return {kernels::MapSearch::kMerge, kernels::MapSearch::kHash, kernels::MapSearch::kGrid};
}

Plan ByNode(const Program& program, const NetworkPlan& plans) {
  Plan plan;
  if (!plans.empty()) plan.fallback = plans.front();
  for (size_t c = 0; c < plans.size(); ++c) plan.by_node.emplace(program.convs[c].node, plans[c]);
  return plan;
}

std::string Describe(const ConvPlan& plan) {
  const std::string block = plan.block_rows == 0 ? std::string() : absl::StrCat(" ", plan.block_rows, " rows");
  if (plan.dataflow == Dataflow::kFetchOnDemand) {
    return absl::StrCat("fetch_on_demand", block, " ", NameOf(plan.map_search));
  }
  return absl::StrCat("gather_gemm_scatter ", NameOf(plan.grouping), block, " ", NameOf(plan.map_search));
}

}  // namespace voxserve
