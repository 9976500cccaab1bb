#include "engine/tuner/plan_candidates.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/ops/conv/dataflow.h"

namespace voxserve {
namespace {

using kernels::Grouping;
using kernels::GroupingOptions;

// Returns a rulebook's offset_begin, [K + 1]; empty if its sizes are not known.
std::vector<int64_t> OffsetBegin(const RulebookSizes& sizes, size_t rulebook) {
  if (rulebook >= sizes.size() || sizes[rulebook].empty()) return {};
  std::vector<int64_t> offset_begin = {0};
  for (const int64_t size : sizes[rulebook]) offset_begin.push_back(offset_begin.back() + size);
  return offset_begin;
}

kernels::MatmulGroupingParams MapsOf(const ProgramRulebook& rulebook, const std::vector<int64_t>& offset_begin) {
  if (offset_begin.empty()) return {};
  const RulebookSpec& spec = rulebook.spec;
  const auto num_offsets = static_cast<int32_t>(offset_begin.size()) - 1;
  const bool is_symmetric = spec.geometry.IsSymmetric();
  return {.num_offsets = num_offsets,
          .offset_begin = offset_begin.data(),
          .is_symmetric = is_symmetric,
          .identity_offset = is_symmetric && spec.in_level == spec.out_level ? num_offsets / 2 : -1};
}

// Appends runs for a dataflow's candidates other than the defaults. Each run gives every convolution its n-th
// candidate, so that a kernel finds the caches as in service, after the layers before it.
void AppendRuns(const Program& program, const ConvDataflow& dataflow, const NetworkPlan& defaults,
                const RulebookSizes& sizes, std::vector<NetworkPlan>& runs) {
  const size_t first_run = runs.size();
  for (size_t c = 0; c < program.convs.size(); ++c) {
    const ProgramConv& conv = program.convs[c];
    const ServedDataflow* const served = conv.Find(dataflow.id());
    if (served == nullptr) continue;
    const auto rulebook = static_cast<size_t>(conv.rulebook);
    const std::vector<int64_t> offset_begin = OffsetBegin(sizes, rulebook);
    size_t run = first_run;
    for (const ConvPlan& plan : dataflow.Candidates(*served, ByDataflow(defaults[c], dataflow.id()),
                                                    MapsOf(program.rulebooks[rulebook], offset_begin))) {
      if (plan == defaults[c]) continue;
      if (run == runs.size()) runs.push_back(defaults);
      runs[run++][c] = plan;
    }
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

std::vector<NetworkPlan> CandidateRuns(const Program& program, const NetworkPlan& defaults,
                                       const RulebookSizes& sizes) {
  std::vector<NetworkPlan> runs = {defaults};
  for (const ConvDataflow* dataflow : Dataflows()) AppendRuns(program, *dataflow, defaults, sizes, runs);
  return runs;
}

std::vector<kernels::MapSearch> MapSearches(const Program& program) {
  const bool is_on_cuda = !program.convs.empty() && program.convs.front().is_on_cuda;
  if (is_on_cuda) return {kernels::MapSearch::kHash};
  return {kernels::MapSearch::kMerge, kernels::MapSearch::kHash, kernels::MapSearch::kGrid};
}

Plan ByNode(const Program& program, const NetworkPlan& plans) {
  Plan plan;
  if (!plans.empty()) plan.fallback = plans.front();
  for (size_t c = 0; c < plans.size(); ++c) plan.by_node.emplace(program.convs[c].node, plans[c]);
  return plan;
}

std::string Describe(const ConvPlan& plan) {
  const ConvDataflow& dataflow = DataflowOf(plan.dataflow);
  const std::string grouping = dataflow.has_grouping() ? absl::StrCat(" ", NameOf(plan.grouping)) : std::string();
  const std::string block =
      plan.block == kernels::ConvBlock{} ? std::string() : absl::StrCat(" ", Describe(plan.block));
  return absl::StrCat(absl::AsciiStrToLower(dataflow.name()), grouping, block, " ", NameOf(plan.map_search));
}

}  // namespace voxserve
