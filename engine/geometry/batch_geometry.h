#pragma once

// BatchGeometry makes a batch's geometry on the CPU: its voxels, the sites of every level and every rulebook
// (geometry_maker.h defines these). Each is made once and read by all steps that need it. The geometry follows from
// coordinates, except that FilterLevel may read the scores by which a network prunes.
//
// A CpuExecutor keeps one and fills it anew for every batch, so that memory is allocated once. Memory that grows with
// the batch comes from `memory`, which throws std::bad_alloc when it is exhausted. After an exception the object must
// not be read until the next Voxelize. Not thread-safe.

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "absl/status/status.h"
#include "engine/geometry/batch_counts.h"
#include "engine/geometry/geometry_maker.h"
#include "engine/geometry/point_sampling.h"
#include "kernels/conv/rulebook_search.h"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/core/scratch.h"
#include "kernels/core/thread_pool.h"
#include "kernels/points/voxel_limit.h"
#include "kernels/points/voxelize.h"

namespace voxserve {

class BatchGeometry final : public BatchCounts, public GeometryMaker {
 public:
  // pool and memory outlive it.
  explicit BatchGeometry(kernels::ThreadPool* pool,
                         std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : point_to_voxel(memory),
        sorted_points(memory),
        voxel_begin(memory),
        pool_(pool),
        memory_(memory),
        point_mask_(memory),
        table_(memory),
        workspace_(memory) {}

  // Selects the batch's farthest points: sets num_valid and selected_points, which are empty where no sample selects
  // any. Call it before Voxelize. If a sample restricts the network to its selected points, SamplePoints sets
  // points->is_valid to a mask of the points that the network sees. Pass that mask to Voxelize.
  void SamplePoints(const PointSampling& sampling, kernels::VoxelizeParams* points);

  // Finds the points' voxels: fills the members below and level 0. `fixed` holds the network's part of the parameters
  // (dimension, rounding, origin, range, voxel size) and the points (num_points, num_samples, point_begin, axes,
  // is_valid); this method sets outputs and workspace. It keeps at most max_voxels voxels of each sample, the first
  // ones by `order`; 0: no limit. Returns RESOURCE_EXHAUSTED (TOO_MANY_POINTS) above 2^31 - 1 points.
  absl::Status Voxelize(const kernels::VoxelizeParams& fixed, int64_t max_voxels, kernels::VoxelOrder order);

  // Each of these makes its result immediately. Sites whose coordinates a CoordinateKey cannot hold are not made, but
  // counted in num_beyond_limits. MakeLevel returns RESOURCE_EXHAUSTED if the level would take more than 16 GiB of
  // scratch.
  absl::Status MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) override;
  absl::Status UniteLevels(int level, int a, int b) override;
  absl::Status FilterLevel(int level, int parent, kernels::SiteFilterParams filter) override;
  absl::Status MakeRulebook(int index, const RulebookRequest& request) override;
  absl::Status SwapRulebook(int index, int of) override;
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::Status MakeSampleBegins(absl::Span<const int> levels) override;
  absl::Status MakeOrders(absl::Span<const OrderRequest> orders) override;

  const int64_t* level_sample_begin(int level) const { return sample_begins_[static_cast<size_t>(level)].data(); }

  const kernels::ScratchVector<uint64_t>& keys(int level) const { return levels_[static_cast<size_t>(level)]; }
  int64_t num_sites(int level) const { return static_cast<int64_t>(keys(level).size()); }
  kernels::RulebookView rulebook(int index) const { return rulebooks_[static_cast<size_t>(index)].View(); }
  // [num_sites of its level] the row at each place of an order.
  const kernels::ScratchVector<int32_t>& row_of_place(int order) const { return orders_[static_cast<size_t>(order)]; }
  SpreadGroups spread_groups(int order) const;

  // The number of rulebooks since Voxelize that asked for a grid and got a hash table, because the grid would have been
  // larger than max_grid_bytes.
  int64_t num_grid_fallbacks() const { return num_grid_fallbacks_; }

  // The points' voxels and the voxels' points. kernels/points/voxelize.h defines each array.
  kernels::ScratchVector<int32_t> point_to_voxel;
  kernels::ScratchVector<int32_t> sorted_points;
  kernels::ScratchVector<int64_t> voxel_begin;

  // Returns the bytes that the last batch needed. The object may hold more memory, from an earlier batch.
  int64_t needed_bytes() const;

 private:
  // Return level or rulebook number `index`, and add it if it does not exist yet. Adding may move the others in memory.
  kernels::ScratchVector<uint64_t>& Level(int index);
  kernels::Rulebook& RulebookAt(int index);
  void* Workspace(size_t bytes);         // aligned for anything
  void* AlignedWorkspace(size_t bytes);  // to 256 bytes

  kernels::ThreadPool* const pool_;
  std::pmr::memory_resource* const memory_;
  int32_t dimension_ = 3;
  int32_t num_samples_ = 0;
  int64_t num_grid_fallbacks_ = 0;
  std::vector<kernels::ScratchVector<uint64_t>> levels_;  // ascending, unique keys of each level
  std::vector<std::vector<int64_t>> sample_begins_;       // by level; [samples + 1] after MakeSampleBegins, else empty
  std::vector<kernels::Rulebook> rulebooks_;
  std::vector<kernels::ScratchVector<int32_t>> orders_;
  std::vector<kernels::ScratchVector<kernels::SpreadGroup>> spread_groups_;  // by order
  std::vector<int32_t> num_spread_groups_;                                   // by order
  kernels::ScratchVector<uint8_t> point_mask_;  // [num_points] points that the network sees, where a sample limits them
  std::vector<kernels::Axes> sample_origin_;
  std::vector<int64_t> level_beyond_limits_;
  kernels::cpu::CoordinateTable table_;
  kernels::ScratchVector<std::max_align_t> workspace_;
  size_t most_workspace_bytes_ = 0;  // maximum over this batch
  int64_t most_grid_bytes_ = 0;      // maximum of the coordinate table as a grid
  int64_t most_hash_bytes_ = 0;      // maximum of the coordinate table as a hash table
};

}  // namespace voxserve
