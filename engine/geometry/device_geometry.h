#pragma once

// DeviceGeometry makes a batch's geometry on a GPU: its voxels, the sites of every level and every rulebook. It is the
// counterpart of BatchGeometry, with rows in Morton order.
//
// The methods Make... record requests. Finish carries them out: it makes levels one after the other, since each depends
// on its parent, and then all rulebooks together. One copy brings the sizes to the host. The host waits for it:
// - in Finish, after the levels, if no step reads pairs. Rulebooks then take memory only for the sites that exist;
// - in WaitForSizes, after the rulebooks, if a step reads pairs, since the host needs the numbers of pairs too.
//   Rulebooks then take memory for as many sites as the points can make;
// - in WaitForSizes if Begin got rooms (capacities per level). The features may be queued before it. If a room was too
//   small, all levels are empty on the device, and overflowed() is true.
//
// A context's executor keeps one and fills it anew for every batch; memory is the context's batch arena. Not
// thread-safe.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/geometry/batch_counts.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/geometry/device_levels.h"
#include "engine/geometry/device_rulebooks.h"
#include "engine/geometry/device_sizes.h"
#include "engine/geometry/geometry_maker.h"
#include "engine/geometry/geometry_memory.h"
#include "engine/geometry/point_sampling.h"
#include "engine/geometry/site_rooms.h"
#include "engine/runtime/execution_context.h"
#include "kernels/conv/gather_scatter.h"
#include "kernels/conv/neighbours.h"
#include "kernels/points/voxel_limit.h"
#include "kernels/points/voxelize.h"

namespace voxserve {

class DeviceGeometry final : public BatchCounts, public GeometryMaker {
 public:
  DeviceGeometry() = default;
  DeviceGeometry(const DeviceGeometry&) = delete;  // its parts know each other by address
  DeviceGeometry& operator=(const DeviceGeometry&) = delete;

  // Begins a batch and forgets the one before. With num_selected 0, SamplePoints does nothing. rooms may have
  // capacities where the program has one segment and at most kernels::kMostHeldLevels levels, and no step reads pairs.
  // Without capacities, Finish or WaitForSizes waits for the sizes.
  absl::Status Begin(const DeviceSizes::Shape& shape, SiteRooms rooms, CudaContext& context);

  // As in BatchGeometry, but num_valid and selected_points come with the sizes. words: sampling.words(), copied to
  // device memory. max_sample_points: the number of points of the largest sample.
  absl::Status SamplePoints(const PointSampling& sampling, const int64_t* words, int64_t max_sample_points,
                            kernels::VoxelizeParams* points);
  // Does the same as in BatchGeometry. The pointers of `fixed` are device memory. max_voxels 0: no limit.
  absl::Status Voxelize(const kernels::VoxelizeParams& fixed, int64_t max_voxels, kernels::VoxelOrder order);

  absl::Status MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) override;
  absl::Status UniteLevels(int level, int a, int b) override;
  absl::Status FilterLevel(int level, int parent, kernels::SiteFilterParams filter) override;
  absl::Status MakeRulebook(int index, const RulebookRequest& request) override;
  absl::Status SwapRulebook(int index, int of) override;
  // Makes the recorded levels and rulebooks. May wait for the stream (see above).
  absl::Status Finish() override;
  absl::Status MakeSampleBegin(int level) override;

  // Begins the geometry that depends on features (a prune's), once the sizes of the levels before are on the host. The
  // memory of existing features is kept, and new levels and rulebooks take memory beside it.
  void BeginNextSegment();

  // Starts the copy of the sizes that the host does not know yet.
  absl::Status QueueSizes();
  // Call after QueueSizes; the methods below that need sizes are valid afterwards. Waits for the stream unless Finish
  // did. RESOURCE_EXHAUSTED where a rulebook has 2^31 pairs or more: pairs are numbered with 31 bits.
  absl::Status WaitForSizes();

  // Gives scratch memory back: the steps may use it from now on.
  void ReleaseScratch() { memory_.ReleaseScratch(); }

  // Upload geometry that the CPU made from the same points, in place of the methods above (uploaded_geometry.h). Each
  // waits for the stream. UploadVoxels also sets the numbers of sites of all levels.
  absl::Status UploadVoxels(const BatchGeometry& made);
  absl::Status UploadRulebook(int index, const RulebookRequest& request, const kernels::RulebookView& made);
  absl::Status UploadSampleBegin(int level, const BatchGeometry& made);
  // Uploads a level's keys as MortonKeys in the CPU's order of rows, so keys(level) is not ascending.
  absl::Status UploadKeys(int level, const BatchGeometry& made);

  bool has_rooms() const { return !rooms_.capacities.empty(); }
  // Returns the numbers of sites by level. In a batch with rooms they are the rooms' capacities until WaitForSizes.
  const std::vector<int64_t>& num_sites() const { return levels_.num_sites(); }
  // Returns the capacity for points, or 0 if the rooms have none.
  int64_t room_points() const { return rooms_.points; }
  // After WaitForSizes: true where the batch did not fit its rooms.
  bool overflowed() const { return overflowed_; }
  // After WaitForSizes: true where num_sites() are the numbers that the batch needs, even if it did not fit its rooms.
  // False where coordinates had too few bits, since voxels were then counted wrongly.
  bool has_true_sizes() const { return rooms_.axis_bits == 0 || max_coordinate() >> rooms_.axis_bits == 0; }
  // Returns the largest voxel coordinate on any axis. Valid after WaitForSizes, for VoxelOrigin::kMinimum.
  int64_t max_coordinate() const { return *sizes_.on_host().max_coordinate; }
  // [1] in device memory.
  const int64_t* device_num_sites(int level) const { return levels_.at(level).num_sites; }
  // Each is valid where its form was asked for (RulebookForms).
  kernels::PairTablesView rulebook(int index) const { return rulebooks_.pairs(index); }
  kernels::NeighboursView neighbours(int index) const { return rulebooks_.neighbours(index); }
  kernels::TilesView tiles(int index) const { return rulebooks_.tiles(index); }

  // Each is device memory; kernels/points/voxelize.h defines it.
  const int32_t* point_to_voxel() const { return point_to_voxel_; }
  const int32_t* sorted_points() const { return sorted_points_; }
  const int64_t* voxel_begin() const { return voxel_begin_; }
  // [samples + 1] in device memory, after MakeSampleBegin or UploadSampleBegin of the level.
  const int64_t* level_sample_begin(int level) const { return levels_.at(level).sample_begin; }
  // [num_sites(level)] a level's MortonKeys in device memory. They are ascending where the GPU made the level; a level
  // of the CPU has keys only after UploadKeys.
  const uint64_t* keys(int level) const { return levels_.at(level).keys; }

 private:
  absl::Status TakeSizes();

  GeometryMemory memory_;
  DeviceSizes sizes_;
  DeviceLevels levels_;
  DeviceRulebooks rulebooks_;
  bool has_sizes_ = false;  // Finish has waited for the sizes of the current segment
  SiteRooms rooms_;
  bool overflowed_ = false;
  int64_t num_points_ = 0;
  int32_t* point_to_voxel_ = nullptr;
  int32_t* sorted_points_ = nullptr;
  int64_t* voxel_begin_ = nullptr;
};

}  // namespace voxserve
