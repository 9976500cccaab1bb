#pragma once

// All levels and maps of a workload on the GPU, with one or another way of making them, in memory of its own: the
// launches alone can then be repeated and timed.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/conv/pair_tables.h"
#include "tests/bench/event_timer.h"
#include "tests/bench/map_workloads.h"
#include "tests/support/test_device.h"

namespace voxserve::bench {

// What a network needs of one level, in order of launch.
enum class MappingStep {
  kCoordinates,  // the level's sites: voxelize for level 0, if at all
  kTable,
  kSubmanifoldSearch,
  kSubmanifoldPairs,
  kStridedSearch,
  kStridedPairs,
};
inline constexpr int kNumMappingSteps = 6;
constexpr int StepOf(int level, MappingStep step) { return level * kNumMappingSteps + static_cast<int>(step); }

struct MappingOptions {
  bool fuses_coordinates = true;  // else plain_mapping.h's stages; they need sizes and spconv's rule
  bool looks_up_bricks = true;    // else plain_mapping.h's loop over cells
  // The host knows every level's size, as after a copy back; else, as in the server, capacities alone.
  bool knows_sizes = true;
  bool voxelizes = false;    // else level 0 is there
  bool makes_pairs = false;  // pair tables, in the memory of the neighbours
  // Where the cells of an output are the block of sites that it was divided from, its inputs are read as consecutive
  // rows; needs fused coordinates and bricks. Else they are looked up like all others.
  bool reads_blocks = false;
};

class DeviceMapping {
 public:
  // Both outlive it.
  DeviceMapping(const MapWorkload& workload, const CpuMaps& expected, const MappingOptions& options);
  ~DeviceMapping();

  // Launches everything on TestStream().
  void Launch(const MarkStep& mark);

  // Of what the last Launch made; they wait for it. Empty, or what is wrong.
  std::string Flaw() const;                                     // against the CPU: all sites, and the size of every map
  std::string DifferenceFrom(const DeviceMapping& ours) const;  // all sites, all neighbours; not with pairs

 private:
  struct Level;
  struct Map;
  void MakeCoordinates(int level);
  void Search(const Map& map);
  void MakePairs(const Map& map);
  std::vector<uint64_t> Keys(int level) const;
  std::vector<int32_t> Neighbours(const Map& map) const;  // [K, sites]
  // Device memory of its own, for as long as it lives.
  template <typename T>
  T* Take(int64_t count);
  template <typename T>
  T* Take(const std::vector<T>& values);

  const MapWorkload& workload_;
  const CpuMaps& expected_;
  const MappingOptions options_;
  std::vector<Level> levels_;
  std::vector<Map> maps_;
  kernels::VoxelizeParams voxelize_;
  void* scratch_ = nullptr;  // of one launcher at a time
  std::vector<std::unique_ptr<support::DeviceArray<char>>> memory_;
};

}  // namespace voxserve::bench
