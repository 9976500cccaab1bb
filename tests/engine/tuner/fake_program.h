#pragma once

// Makes a program for tests of plan searches, and the sizes of its kernel maps. The program has no steps, so it cannot
// run. FakeDevice (fake_device.h) says how long it would take.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/compiler/program.h"

namespace voxserve {

// Indices of the program's rulebooks (kernel maps).
inline constexpr int kSubmanifold0 = 0, kDown = 1, kUp = 2, kSubmanifold1 = 3;

inline RulebookSpec Submanifold(int level) {
  return {.in_level = level, .out_level = level, .geometry = {.kernel_size = {3, 3, 3, 1}, .padding = {1, 1, 1, 0}}};
}

inline RulebookSpec Strided() {
  return {.in_level = 0, .out_level = 1, .geometry = {.kernel_size = {2, 2, 2, 1}, .stride = {2, 2, 2, 1}}};
}

inline constexpr ConvPlan kGrouped = {.map_search = kernels::MapSearch::kHash,
                                      .dataflow = Dataflow::kGatherGemmScatter};

// Returns a network of two levels: stem, down, two convolutions on the coarse level, up, and a convolution on every
// voxel. `up` has no implicit GEMM.
inline Program FakeProgram(bool is_on_cuda) {
  Program program;
  program.levels.resize(2);
  program.levels[1].parent = 0;
  program.rulebooks = {{.spec = Submanifold(0), .first_conv = 0},
                       {.spec = Strided(), .first_conv = 1},
                       {.spec = Strided(), .swap_of = kDown, .first_conv = 4},
                       {.spec = Submanifold(1), .first_conv = 2}};
  const auto add = [&](const char* node, int rulebook, const std::vector<int32_t>& rows) {
    program.convs.push_back({.node = node,
                             .step = static_cast<int>(program.convs.size()),
                             .rulebook = rulebook,
                             .in_channels = 32,
                             .out_channels = 64,
                             .is_on_cuda = is_on_cuda});
    std::vector<ServedDataflow>& served = program.convs.back().served;
    served.push_back({.dataflow = is_on_cuda ? Dataflow::kGatherGemmScatter : Dataflow::kFetchOnDemand});
    if (!is_on_cuda || rows.empty()) return;
    std::vector<kernels::ConvBlock> blocks;
    for (const int32_t of_block : rows) blocks.push_back({.rows = of_block, .columns = 64, .split_k = 1});
    served.push_back({.dataflow = Dataflow::kImplicitGemm, .blocks = std::move(blocks)});
  };
  add("stem", kSubmanifold0, {64, 128});
  add("down", kDown, {64, 128});
  add("deep.0", kSubmanifold1, {64, 128, 256});
  add("deep.1", kSubmanifold1, {64, 128, 256});
  add("up", kUp, {});
  add("last", kSubmanifold0, {64, 128});
  program.has_scores = true;
  program.default_plans = PlanTable(program, {{.plan = {.fallback = is_on_cuda ? kGrouped : ConvPlan()}}});
  return program;
}

// Returns the number of pairs of each offset of a rulebook, similar to those of LiDAR scans. In a submanifold rulebook
// the centre pairs every site with itself, mirrored offsets have equal numbers, and the first and last offsets have the
// fewest pairs.
inline std::vector<int64_t> SizesOf(const ProgramRulebook& rulebook, int64_t num_voxels) {
  const int32_t num_offsets = rulebook.spec.geometry.NumOffsets();
  std::vector<int64_t> sizes;
  for (int32_t k = 0; k < num_offsets; ++k) {
    const int32_t pair = num_offsets == 27 ? std::min(k, 26 - k) : k;
    sizes.push_back(num_offsets == 27 && k == 13 ? num_voxels : num_voxels * (pair + 1) / 20);
  }
  return sizes;
}

}  // namespace voxserve
