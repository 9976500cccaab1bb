#pragma once

// These functions list the plans that a search (plan_search.h) tries for each convolution: the candidates of every
// dataflow that the convolution's device supports (engine/ops/conv/dataflow.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compiler/program.h"
#include "engine/ops/conv_plan.h"

namespace voxserve {

// A plan for every convolution, by its index in Program::convs.
using NetworkPlan = std::vector<ConvPlan>;

// The number of pairs of each kernel offset, by rulebook (BatchReport::rulebook_sizes).
using RulebookSizes = std::vector<std::vector<int64_t>>;

// Returns plans of the whole network to run, so that each run measures all convolutions. The first plan is `defaults`.
// Each further plan gives every convolution its next candidate of one dataflow, or its default if no candidate is left.
// If `sizes` is empty, candidates that depend on sizes are left out.
std::vector<NetworkPlan> CandidateRuns(const Program& program, const NetworkPlan& defaults, const RulebookSizes& sizes);

// Returns the map searches that the program's device supports.
std::vector<kernels::MapSearch> MapSearches(const Program& program);

// Returns the same plans by node name, for a table. Every convolution has its own entry, so no fallback is used.
Plan ByNode(const Program& program, const NetworkPlan& plans);

// Returns a text like "gather_gemm_scatter ADAPTIVE(0.80, 4096) HASH" or "implicit_gemm 128 x 96 HASH".
std::string Describe(const ConvPlan& plan);

}  // namespace voxserve
