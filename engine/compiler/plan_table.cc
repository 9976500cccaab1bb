#include "engine/compiler/plan_table.h"

#include <algorithm>
#include <utility>

#include "engine/compiler/program.h"

namespace voxserve {
namespace {

bool Serves(const ProgramConv& conv, const ConvPlan& plan) {
  const std::vector<int32_t>& rows = conv.fetch_on_demand_rows;
  if (!conv.is_on_cuda || plan.dataflow != Dataflow::kFetchOnDemand) return true;
  return plan.block_rows == 0 ? !rows.empty() : std::find(rows.begin(), rows.end(), plan.block_rows) != rows.end();
}

}  // namespace

ConvPlan AsGatherGemmScatter(ConvPlan plan) {
  if (plan.dataflow == Dataflow::kGatherGemmScatter) return plan;
  plan.dataflow = Dataflow::kGatherGemmScatter;
  plan.block_rows = 0;
  return plan;
}

PlanTable::PlanTable(const Program& program, const std::vector<Bucket>& buckets) {
  forms_.resize(program.rulebooks.size());
  for (size_t i = 0; i < forms_.size(); ++i) {
    const ProgramRulebook& rulebook = program.rulebooks[i];
    if (!rulebook.is_pooled) continue;
    if (rulebook.swap_of >= 0) {
      forms_[static_cast<size_t>(rulebook.swap_of)].swapped_neighbours = true;
    } else {
      forms_[i].neighbours = true;
    }
  }
  for (const Bucket& bucket : buckets) {
    std::vector<ConvPlan>& plans = plans_.emplace_back();
    max_voxels_.push_back(bucket.max_voxels);
    for (const ProgramConv& conv : program.convs) {
      const ConvPlan& wanted = bucket.plan.ForNode(conv.node);
      plans.push_back(Serves(conv, wanted)                 ? wanted
                      : Serves(conv, bucket.plan.fallback) ? bucket.plan.fallback
                                                           : AsGatherGemmScatter(bucket.plan.fallback));
      const ProgramRulebook& rulebook = program.rulebooks[static_cast<size_t>(conv.rulebook)];
      const bool is_swapped = rulebook.swap_of >= 0;
      RulebookForms& forms = forms_[static_cast<size_t>(is_swapped ? rulebook.swap_of : conv.rulebook)];
      if (plans.back().dataflow == Dataflow::kGatherGemmScatter) {
        forms.pairs = true;
      } else {
        (is_swapped ? forms.swapped_neighbours : forms.neighbours) = true;
      }
    }
  }
}

const std::vector<ConvPlan>& PlanTable::ForVoxels(int64_t num_voxels) const {
  const auto bucket = std::upper_bound(max_voxels_.begin(), max_voxels_.end(), num_voxels) - max_voxels_.begin();
  return plans_[std::min(static_cast<size_t>(bucket), plans_.size() - 1)];
}

}  // namespace voxserve
