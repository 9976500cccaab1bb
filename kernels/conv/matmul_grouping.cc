#include "kernels/conv/matmul_grouping.h"

#include <algorithm>
#include <cassert>

namespace voxserve::kernels {
namespace {

// Builds a grouping along the walk. A group consists of units: a mirrored pair in a symmetric walk, else one offset.
class GroupBuilder {
 public:
  GroupBuilder(const MatmulGroupingParams& params, const GroupingOptions& options)
      : params_(params), options_(options) {
    grouping_.buffer_begin.assign(static_cast<size_t>(params.num_offsets), -1);
    grouping_.groups.reserve(static_cast<size_t>(params.num_offsets));
  }

  MatmulGrouping Build() && {
    const int32_t num_offsets = params_.num_offsets;
    const int32_t identity = IdentityPosition();
    AddRun(0, identity);
    if (identity < num_offsets) AddRun(identity + 1, num_offsets);
    grouping_.num_product_rows = grouping_.num_gathered_rows;
    if (const int64_t rows = identity < num_offsets ? SizeAt(identity) : 0; rows > 0) {
      grouping_.buffer_begin[static_cast<size_t>(params_.identity_offset)] = grouping_.num_gathered_rows;
      grouping_.num_product_rows += rows;
    }
    return std::move(grouping_);
  }

 private:
  // Returns num_offsets if there is no identity.
  int32_t IdentityPosition() const {
    int32_t position = 0;
    while (position < params_.num_offsets &&
           OffsetAt(position, params_.num_offsets, params_.is_symmetric) != params_.identity_offset) {
      ++position;
    }
    return position;
  }

  int64_t SizeAt(int32_t position) const {
    const int32_t k = OffsetAt(position, params_.num_offsets, params_.is_symmetric);
    return params_.offset_begin[k + 1] - params_.offset_begin[k];
  }

  // Returns the end of the unit that begins at a position of a run: [unit, UnitEnd(unit, end)).
  int32_t UnitEnd(int32_t unit, int32_t end) const { return std::min(unit + (params_.is_symmetric ? 2 : 1), end); }

  // Cuts positions [begin, end) into groups.
  void AddRun(int32_t begin, int32_t end) {
    switch (options_.grouping) {
      case Grouping::kSeparate:
        AddOneByOne(begin, end);
        return;
      case Grouping::kSymmetric:
        for (int32_t unit = begin; unit < end; unit = UnitEnd(unit, end)) AddGroup(unit, UnitEnd(unit, end));
        return;
      case Grouping::kFixed: {
        const int32_t third = params_.is_symmetric ? begin + (end - begin) / 2 / 3 * 2 : begin;
        AddGroup(begin, third);
        AddGroup(third, end);
        return;
      }
      case Grouping::kAdaptive:
        AddAdaptively(begin, end);
        return;
    }
  }

  // Groups maps by Algorithm 4 of the paper that matmul_grouping.h names. Its pseudo-code starts n_min at 0, which
  // would end every group at its first map; we start with the size of that map.
  void AddAdaptively(int32_t begin, int32_t end) {
    int32_t first = begin;
    int64_t smallest = 0, largest = 0;  // sizes within the current group [first, unit)
    for (int32_t unit = begin, unit_end = begin; unit < end; unit = unit_end) {
      unit_end = UnitEnd(unit, end);
      int64_t unit_smallest = SizeAt(unit), unit_largest = unit_smallest;
      for (int32_t position = unit + 1; position < unit_end; ++position) {
        unit_smallest = std::min(unit_smallest, SizeAt(position));
        unit_largest = std::max(unit_largest, SizeAt(position));
      }
      const int64_t joint_smallest = unit == first ? unit_smallest : std::min(smallest, unit_smallest);
      const int64_t joint_largest = unit == first ? unit_largest : std::max(largest, unit_largest);
      if (unit != first && !IsWithinEpsilon(joint_smallest, joint_largest)) {
        AddBatchedIfSmall(first, unit, largest);
        first = unit;
        smallest = unit_smallest;
        largest = unit_largest;
      } else {
        smallest = joint_smallest;
        largest = joint_largest;
      }
    }
    AddBatchedIfSmall(first, end, largest);
  }

  // Tests 1 - smallest / largest <= epsilon without a division.
  bool IsWithinEpsilon(int64_t smallest, int64_t largest) const {
    return static_cast<double>(largest - smallest) <= options_.epsilon * static_cast<double>(largest);
  }

  void AddBatchedIfSmall(int32_t begin, int32_t end, int64_t largest) {
    if (largest < options_.bmm_max_rows) {
      AddGroup(begin, end);
    } else {
      AddOneByOne(begin, end);
    }
  }

  void AddOneByOne(int32_t begin, int32_t end) {
    for (int32_t position = begin; position < end; ++position) AddGroup(position, position + 1);
  }

  void AddGroup(int32_t begin, int32_t end) {
    while (begin < end && SizeAt(begin) == 0) ++begin;
    while (begin < end && SizeAt(end - 1) == 0) --end;
    if (begin == end) return;
    MatmulGroup group{.first = begin, .count = end - begin, .rows = 0, .begin = grouping_.num_gathered_rows};
    for (int32_t position = begin; position < end; ++position) group.rows = std::max(group.rows, SizeAt(position));
    for (int32_t position = begin; position < end; ++position) {
      if (SizeAt(position) == 0) continue;
      const int32_t k = OffsetAt(position, params_.num_offsets, params_.is_symmetric);
      grouping_.buffer_begin[static_cast<size_t>(k)] = group.begin + group.rows * (position - begin);
    }
    grouping_.num_gathered_rows += group.rows * group.count;
    grouping_.groups.push_back(group);
  }

  const MatmulGroupingParams& params_;
  const GroupingOptions& options_;
  MatmulGrouping grouping_;
};

}  // namespace

int32_t OffsetAt(int32_t position, int32_t num_offsets, bool is_symmetric) {
  if (!is_symmetric) return position;
  // The centre is the last position, and the formula for even positions gives it: (K - 1) / 2.
  return position % 2 == 0 ? position / 2 : num_offsets - 1 - position / 2;
}

std::vector<int32_t> WalkOrder(int32_t num_offsets, bool is_symmetric) {
  std::vector<int32_t> order(static_cast<size_t>(num_offsets));
  for (int32_t position = 0; position < num_offsets; ++position) {
    order[static_cast<size_t>(position)] = OffsetAt(position, num_offsets, is_symmetric);
  }
  return order;
}

MatmulGrouping GroupMatmuls(const MatmulGroupingParams& params, const GroupingOptions& options) {
  assert(!params.is_symmetric || params.num_offsets % 2 == 1);
  return GroupBuilder(params, options).Build();
}

}  // namespace voxserve::kernels
