#pragma once

// DistinctGroupings lists the groupings of matrix products (kernels/conv/matmul_grouping.h) that are worth measuring
// for a batch's maps. The search space is that of TorchSparse's Algorithm 5 (Tang et al., MLSys 2022, Appendix B):
// SEPARATE, SYMMETRIC, FIXED, and ADAPTIVE over 21 values of epsilon (the largest share of padding) and 50 of S
// (GroupingOptions::bmm_max_rows). Most of these thousand options give the same groups for a real scan's maps. Only one
// option for each distinct set of groups is returned: of the parameters that give these groups, those nearest to their
// mean.

#include <vector>

#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

// Returns options that each give different groups for these maps. The first is `base`.
std::vector<kernels::GroupingOptions> DistinctGroupings(const kernels::MatmulGroupingParams& maps,
                                                        const kernels::GroupingOptions& base);

}  // namespace voxserve
