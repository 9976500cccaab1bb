#pragma once

// What a search may choose from for each convolution.
//
// GPU: gather-GEMM-scatter with every grouping that matters, and fetch-on-demand with every size of block that its
// kernel serves. Groupings are those of TorchSparse's Algorithm 5 (Tang et al., MLSys 2022, Appendix B): SEPARATE,
// SYMMETRIC, FIXED, and ADAPTIVE over 21 values of epsilon and 50 of S. Most of these thousand give the same groups
// for the maps that a scan really has; one of each kind is measured, from the middle of the parameters that agree.
//
// CPU: the rows of a block.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compiler/program.h"
#include "engine/ops/conv_plan.h"
#include "kernels/conv/matmul_grouping.h"

namespace voxserve {

// A plan of every convolution, by its index.
using NetworkPlan = std::vector<ConvPlan>;

// The pairs of each offset, by rulebook: BatchOutput::rulebook_sizes.
using RulebookSizes = std::vector<std::vector<int64_t>>;

// Options whose groups differ from each other's for these maps; the first is `base`, for all that agree with it.
std::vector<kernels::GroupingOptions> DistinctGroupings(const kernels::MatmulGroupingParams& maps,
                                                        const kernels::GroupingOptions& base);

// Whole networks to run, so that all convolutions are measured at once: the first is `defaults`; each other one gives
// every convolution its next candidate, and its default where it has none left. On a CPU sizes may be empty.
std::vector<NetworkPlan> CandidateRuns(const Program& program, const NetworkPlan& defaults, const RulebookSizes& sizes);

// The strategies by which the program's device searches maps.
std::vector<kernels::MapSearch> MapSearches(bool is_on_cuda);

// The same by name, for a table: every convolution has its entry, whatever the fallback is later.
Plan ByNode(const Program& program, const NetworkPlan& plans);

// "gather_gemm_scatter ADAPTIVE(0.80, 4096) HASH", "fetch_on_demand 128 rows HASH".
std::string Describe(const ConvPlan& plan);

}  // namespace voxserve
