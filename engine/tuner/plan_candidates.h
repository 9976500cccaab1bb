#pragma once

// What a search may choose from for each convolution: the candidates of every dataflow that its device serves
// (engine/ops/conv/dataflow.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compiler/program.h"
#include "engine/ops/conv_plan.h"

namespace voxserve {

// A plan of every convolution, by its index.
using NetworkPlan = std::vector<ConvPlan>;

// The pairs of each offset, by rulebook: BatchOutput::rulebook_sizes.
using RulebookSizes = std::vector<std::vector<int64_t>>;

// Whole networks to run, so that all convolutions are measured at once: the first is `defaults`; each other one gives
// every convolution its next candidate of one dataflow, and its default where it has none left. sizes may be empty:
// then there are no candidates that follow from them.
std::vector<NetworkPlan> CandidateRuns(const Program& program, const NetworkPlan& defaults, const RulebookSizes& sizes);

// The strategies by which the program's device searches maps.
std::vector<kernels::MapSearch> MapSearches(const Program& program);

// The same by name, for a table: every convolution has its entry, whatever the fallback is later.
Plan ByNode(const Program& program, const NetworkPlan& plans);

// "gather_gemm_scatter ADAPTIVE(0.80, 4096) HASH", "implicit_gemm 128 x 96 HASH".
std::string Describe(const ConvPlan& plan);

}  // namespace voxserve
