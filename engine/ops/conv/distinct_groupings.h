#pragma once

// Which groupings of matrix products (kernels/conv/matmul_grouping.h) are worth measuring for the maps of a batch:
// those of TorchSparse's Algorithm 5 (Tang et al., MLSys 2022, Appendix B), SEPARATE, SYMMETRIC, FIXED, and ADAPTIVE
// over 21 values of epsilon and 50 of S. Most of these thousand give the same groups for the maps that a scan really
// has; one of each kind is measured, from the middle of the parameters that agree.

#include <vector>

#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

// Options whose groups differ from each other's for these maps; the first is `base`, for all that agree with it.
std::vector<kernels::GroupingOptions> DistinctGroupings(const kernels::MatmulGroupingParams& maps,
                                                        const kernels::GroupingOptions& base);

}  // namespace voxserve
