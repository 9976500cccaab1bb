#pragma once

// DeviceMapping makes all levels and kernel maps of a workload (map_workloads.h) on the GPU, in the way that
// MappingOptions choose. It owns all memory that the kernels need, so that a benchmark can repeat and time the launches
// without allocations. An error of CUDA ends the program.

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
  // If true, our kernels find the output sites. If false, PlainOutputCoordinates does, which needs knows_sizes and
  // spconv's rule.
  bool fuses_coordinates = true;
  // If true, our kernels search for neighbours in bricks (blocks of 64 cells that need one look-up each). If false,
  // PlainSearchNeighbours does.
  bool looks_up_bricks = true;
  // If true, the host knows every level's size, as after a copy back. If false, it knows only capacities, as in the
  // server.
  bool knows_sizes = true;
  bool voxelizes = false;    // if false, level 0 exists already
  bool makes_pairs = false;  // if true, also makes the pair tables, which overwrite the neighbours
  // Matters for kernels whose size equals their stride: an output's cells are then the block of input sites that made
  // the output, and these inputs are consecutive rows. If true, the search reads these rows without look-ups, which
  // needs fuses_coordinates and looks_up_bricks. If false, it looks up these cells like all others.
  bool reads_blocks = false;
};

class DeviceMapping {
 public:
  // `workload` and `expected` must outlive this object.
  DeviceMapping(const MapWorkload& workload, const CpuMaps& expected, const MappingOptions& options);
  ~DeviceMapping();

  // Launches all steps on TestStream(), and calls `mark` after the launches of each step. Does not wait.
  void Launch(const MarkStep& mark);

  // Flaw and DifferenceFrom wait for the last Launch and check its results. They return "", or a text that says what is
  // wrong. Flaw compares all sites and the size of every map with `expected`. DifferenceFrom compares all sites and
  // neighbours with those of `ours`; neither mapping may have makes_pairs.
  std::string Flaw() const;
  std::string DifferenceFrom(const DeviceMapping& ours) const;

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
