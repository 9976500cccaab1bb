#include "engine/compiler/plan_table.h"

#include <algorithm>
#include <utility>

#include "engine/compiler/program.h"
#include "kernels/conv/tiles.h"

namespace voxserve {
namespace {

ConvPlan UniversalPlan(const ProgramConv& conv, const ConvPlan& plan) {
  return ByDataflow(plan, conv.served.front().dataflow);
}

// Returns true if the convolution saves more time by sorted rows than sorting takes. A large kernel of few channels, as
// a network's first convolution is, has cheap products and many numbers of input rows to sort.
bool PaysToSortRows(const ProgramConv& conv) {
  constexpr int32_t kFewChannels = 16;
  return conv.num_offsets <= kernels::kSortBits || conv.in_channels > kFewChannels;
}

// Returns the forms of each rulebook that pools, and convolutions with these plans, read.
std::vector<RulebookForms> FormsOf(const Program& program, const std::vector<ConvPlan>& plans) {
  std::vector<RulebookForms> forms(program.rulebooks.size());
  // A rulebook that swaps the pairs of another rulebook has no tables, so its forms are added to the forms of that
  // rulebook.
  const auto forms_of = [&](size_t index) -> RulebookForms& {
    const ProgramRulebook& rulebook = program.rulebooks[index];
    return forms[rulebook.is_swapped() ? static_cast<size_t>(rulebook.swap_of) : index];
  };
  for (size_t i = 0; i < forms.size(); ++i) {
    const ProgramRulebook& rulebook = program.rulebooks[i];
    if (!rulebook.is_pooled) continue;
    forms_of(i) |= {.neighbours = !rulebook.is_swapped(), .swapped_neighbours = rulebook.is_swapped()};
  }
  for (size_t c = 0; c < plans.size(); ++c) {
    const auto index = static_cast<size_t>(program.convs[c].rulebook);
    RulebookForms read = DataflowOf(plans[c].dataflow).Forms(program.rulebooks[index].is_swapped());
    read.sorts_rows = (read.tiles || read.swapped_tiles) && PaysToSortRows(program.convs[c]);
    forms_of(index) |= read;
  }
  return forms;
}

}  // namespace

std::vector<ConvPlan> UniversalPlans(const Program& program, std::vector<ConvPlan> plans) {
  std::transform(program.convs.begin(), program.convs.end(), plans.begin(), plans.begin(), UniversalPlan);
  return plans;
}

PlanTable::PlanTable(const Program& program, const std::vector<Bucket>& buckets) : forms_(program.rulebooks.size()) {
  for (const Bucket& bucket : buckets) {
    std::vector<ConvPlan> plans;
    const ConvPlan& fallback = bucket.plan.fallback;
    for (const ProgramConv& conv : program.convs) {
      const ConvPlan& wanted = bucket.plan.ForNode(conv.node);
      plans.push_back(conv.Serves(wanted) ? wanted : conv.Serves(fallback) ? fallback : UniversalPlan(conv, fallback));
    }
    Add(program, bucket.max_voxels, std::move(plans));
  }
}

PlanTable::PlanTable(const Program& program, std::vector<ConvPlan> plans) : forms_(program.rulebooks.size()) {
  Add(program, kNoLimit, std::move(plans));
}

void PlanTable::Add(const Program& program, int64_t max_voxels, std::vector<ConvPlan> plans) {
  const std::vector<RulebookForms> forms = FormsOf(program, plans);
  for (size_t i = 0; i < forms.size(); ++i) forms_[i] |= forms[i];
  max_voxels_.push_back(max_voxels);
  plans_.push_back(std::move(plans));
}

const std::vector<ConvPlan>& PlanTable::ForVoxels(int64_t num_voxels) const {
  const auto bucket = std::upper_bound(max_voxels_.begin(), max_voxels_.end(), num_voxels) - max_voxels_.begin();
  return plans_[std::min(static_cast<size_t>(bucket), plans_.size() - 1)];
}

}  // namespace voxserve
