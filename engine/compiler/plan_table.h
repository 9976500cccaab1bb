#pragma once

// The plans by which a program runs: one for each range of input sizes, and which forms of the rulebooks they ask for.
//
// A batch's plan follows from its number of voxels alone, so that equal batches run alike. The geometry pass does not
// know that number yet: it makes every form that a plan of the table asks for.
//
// Immutable; replaced as a whole.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/base/unique_id.h"
#include "engine/compiler/plan.h"
#include "engine/geometry/rulebook_forms.h"
#include "engine/ops/conv_plan.h"

namespace voxserve {

struct Program;

// The same choices as far as the dataflow has them that the device serves for every convolution (dataflow.h).
std::vector<ConvPlan> UniversalPlans(const Program& program, std::vector<ConvPlan> plans);

class PlanTable {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // The plan of batches of min_voxels <= voxels < max_voxels.
  struct Bucket {
    int64_t min_voxels = 0;
    int64_t max_voxels = kNoLimit;
    Plan plan;
  };

  // Of a program without convolutions.
  PlanTable() : plans_(1) {}
  // Buckets ascend and do not overlap. Between and beyond them the nearest one serves.
  // A convolution whose plan its device does not serve (ProgramConv::served) runs by the bucket's fallback, and where
  // the device does not serve that either, by the dataflow that it serves for every convolution.
  PlanTable(const Program& program, const std::vector<Bucket>& buckets);
  // One plan of every size, as it is: `plans` has the program's convolutions by their index, each as its device serves
  // it.
  PlanTable(const Program& program, std::vector<ConvPlan> plans);

  const std::vector<ConvPlan>& ForVoxels(int64_t num_voxels) const;   // by convolution
  const std::vector<RulebookForms>& forms() const { return forms_; }  // by rulebook
  // The index of one of ForVoxels' plans in this table.
  size_t IndexOf(const std::vector<ConvPlan>& plans) const { return static_cast<size_t>(&plans - plans_.data()); }
  // No other table of the process has it, but for copies, which are equal.
  uint64_t id() const { return id_.value(); }

 private:
  void Add(const Program& program, int64_t max_voxels, std::vector<ConvPlan> plans);

  UniqueId id_;
  std::vector<int64_t> max_voxels_;           // by bucket
  std::vector<std::vector<ConvPlan>> plans_;  // by bucket
  std::vector<RulebookForms> forms_;
};

}  // namespace voxserve
