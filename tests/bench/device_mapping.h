#pragma once

// Makes all levels and maps of a workload on the GPU, in one of several ways. It has memory of its own, so that the
// launches can be repeated and timed without allocations.

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

// The steps of mapping for one level, in the order of the launches.
enum class MappingStep {
  kCoordinates,  // the level's sites; level 0 has this step only if the mapping voxelizes
  kTable,
  kSubmanifoldSearch,
  kSubmanifoldPairs,
  kStridedSearch,
  kStridedPairs,
};
inline constexpr int kNumMappingSteps = 6;
constexpr int StepOf(int level, MappingStep step) { return level * kNumMappingSteps + static_cast<int>(step); }

struct MappingOptions {
  bool fuses_coordinates = true;  // if false: by plain_mapping.h's stages, which need sizes and spconv's rule
  bool looks_up_bricks = true;    // if false: by plain_mapping.h's loop over cells
  // If true, the host knows every level's size, as after a copy back. If false, it knows only capacities, as in the
  // server.
  bool knows_sizes = true;
  bool voxelizes = false;    // if false, level 0 exists already
  bool makes_pairs = false;  // makes pair tables in the neighbours' memory
  // If the cells of an output are the block of sites from which the output was made, its inputs are read as consecutive
  // rows. This needs fused coordinates and bricks. If false, these cells are looked up like all others.
  bool reads_blocks = false;
};

class DeviceMapping {
 public:
  // Both outlive it.
  DeviceMapping(const MapWorkload& workload, const CpuMaps& expected, const MappingOptions& options);
  ~DeviceMapping();

  // Launches everything on TestStream().
  void Launch(const MarkStep& mark);

  // Both check what the last Launch made, and wait for it. They return "", or a text that says what is wrong.
  std::string Flaw() const;  // compares all sites and every map's size with the CPU's
  std::string DifferenceFrom(const DeviceMapping& ours) const;  // compares all sites and neighbours; not for pairs

 private:
  struct Level;
  struct Map;
  void MakeCoordinates(int level);
  void Search(const Map& map);
  void MakePairs(const Map& map);
  std::vector<uint64_t> Keys(int level) const;
  std::vector<int32_t> Neighbours(const Map& map) const;  // [K, sites]
  // Allocates device memory that lives as long as this object.
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
  void* scratch_ = nullptr;  // used by one launcher at a time
  std::vector<std::unique_ptr<support::DeviceArray<char>>> memory_;
};

}  // namespace voxserve::bench
