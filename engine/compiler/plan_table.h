#pragma once

// A PlanTable holds a program's plans, one for each range of numbers of voxels, and the rulebook forms that these plans
// read. A rulebook form is a layout of a rulebook for one type of kernel (geometry/rulebook_forms.h).
//
// Only a batch's number of voxels selects its plan, so that equal batches run alike. The geometry pass does not know
// that number yet, so it makes every form that any plan of the table reads.
//
// A PlanTable is immutable; a new plan replaces the whole table.

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

// Returns the plans, changed to the one dataflow that the device supports for every convolution (dataflow.h). A block
// of another dataflow is reset to the default.
std::vector<ConvPlan> UniversalPlans(const Program& program, std::vector<ConvPlan> plans);

class PlanTable {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // The plan for batches with min_voxels <= voxels < max_voxels.
  struct Bucket {
    int64_t min_voxels = 0;
    int64_t max_voxels = kNoLimit;
    Plan plan;
  };

  // Makes the table of a program without convolutions.
  PlanTable() : plans_(1) {}
  // Buckets ascend and do not overlap. A number of voxels in a gap between two buckets uses the upper bucket; a number
  // below or above all buckets uses the nearest one. If the device does not support a convolution's plan
  // (ProgramConv::served), the convolution uses the bucket's fallback plan. If the device does not support the fallback
  // plan either, the convolution uses the dataflow that the device supports for every convolution.
  PlanTable(const Program& program, const std::vector<Bucket>& buckets);
  // Makes a table with one plan for every size. plans: by convolution; the device must support each.
  PlanTable(const Program& program, std::vector<ConvPlan> plans);

  const std::vector<ConvPlan>& ForVoxels(int64_t num_voxels) const;   // by convolution
  const std::vector<RulebookForms>& forms() const { return forms_; }  // by rulebook
  // Returns the index of the bucket to which `plans` belongs. plans: a reference that ForVoxels returned.
  size_t IndexOf(const std::vector<ConvPlan>& plans) const { return static_cast<size_t>(&plans - plans_.data()); }
  // Unique in the process, except that a copy has the id of its original, to which it is equal.
  uint64_t id() const { return id_.value(); }

 private:
  void Add(const Program& program, int64_t max_voxels, std::vector<ConvPlan> plans);

  UniqueId id_;
  std::vector<int64_t> max_voxels_;           // by bucket
  std::vector<std::vector<ConvPlan>> plans_;  // by bucket
  std::vector<RulebookForms> forms_;
};

}  // namespace voxserve
