#pragma once

// DeviceGeometry makes on a GPU all that a batch's coordinates decide. It is the counterpart of BatchGeometry, with
// rows in Morton order.
//
// A network's levels and rulebooks are asked for first, and Finish makes them: levels one after the other, as each
// follows from its parent, then all rulebooks together. The host learns the sizes in one copy, for which it waits:
// - after the levels, in Finish, where nobody asks for pairs: rulebooks then take memory for their sites alone;
// - after the rulebooks, in WaitForSizes, where somebody does, since the host must know their numbers too. Rulebooks
//   then take memory for as many sites as the points can make;
// - whenever it likes, where Begin was given rooms: features may be made in the meantime. If there was too little room,
//   nothing was made, and overflowed() says so.
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

  // Begins a batch; forgets the one before. Without num_selected, SamplePoints does nothing. rooms: for the sites of at
  // most kernels::kMostHeldLevels levels, of one segment, of which nobody asks for pairs; without capacities Finish or
  // WaitForSizes waits for the sizes.
  absl::Status Begin(const DeviceSizes::Shape& shape, SiteRooms rooms, CudaContext& context);

  // Does what BatchGeometry's does; num_valid and selected_points come with the sizes. words: the sampling's, in device
  // memory.
  absl::Status SamplePoints(const PointSampling& sampling, const int64_t* words, int64_t max_sample_points,
                            kernels::VoxelizeParams* points);
  // Does what BatchGeometry's does. Pointers of `fixed` are device memory. max_voxels 0: no limit.
  absl::Status Voxelize(const kernels::VoxelizeParams& fixed, int64_t max_voxels, kernels::VoxelOrder order);

  absl::Status MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) override;
  absl::Status UniteLevels(int level, int a, int b) override;
  absl::Status FilterLevel(int level, int parent, kernels::SiteFilterParams filter) override;
  absl::Status MakeRulebook(int index, const RulebookRequest& request) override;
  absl::Status SwapRulebook(int index, int of) override;
  // May wait for the stream.
  absl::Status Finish() override;
  absl::Status MakeSampleBegin(int level) override;

  // Goes on with levels and rulebooks that features decide about, once the sizes of those before have been taken: what
  // is asked for from now on is made beside the features, which keep their memory.
  void BeginNextSegment();

  // Starts the copy of the sizes that the host does not know yet.
  absl::Status QueueSizes();
  // After QueueSizes: makes what follows valid. Waits for the stream where Finish has not. RESOURCE_EXHAUSTED where a
  // rulebook has 2^31 pairs or more, which is what a pair's number can hold.
  absl::Status WaitForSizes();

  // The steps may use the memory of scratch from now on.
  void ReleaseScratch() { memory_.ReleaseScratch(); }

  // Take what the CPU has made of the same points, instead of all that (uploaded_geometry.h). Each waits for the
  // stream. UploadVoxels brings the numbers of all levels' sites too.
  absl::Status UploadVoxels(const BatchGeometry& made);
  absl::Status UploadRulebook(int index, const RulebookRequest& request, const kernels::RulebookView& made);
  absl::Status UploadSampleBegin(int level, const BatchGeometry& made);
  // Uploads MortonKeys in the CPU's order of rows: keys(level) is not ascending then.
  absl::Status UploadKeys(int level, const BatchGeometry& made);

  bool has_rooms() const { return !rooms_.capacities.empty(); }
  // By level; until WaitForSizes of a batch with rooms, the room for them.
  const std::vector<int64_t>& num_sites() const { return levels_.num_sites(); }
  // Of the points, where rooms have some; else 0.
  int64_t room_points() const { return rooms_.points; }
  // After WaitForSizes: the batch did not fit its rooms.
  bool overflowed() const { return overflowed_; }
  // After WaitForSizes: num_sites() are the batch's, though it may not have fitted. Not where coordinates had too few
  // bits.
  bool has_true_sizes() const { return rooms_.axis_bits == 0 || max_coordinate() >> rooms_.axis_bits == 0; }
  // After WaitForSizes, of voxels whose origin is their minimum: the largest coordinate of any axis.
  int64_t max_coordinate() const { return *sizes_.on_host().max_coordinate; }
  // [1] on the device.
  const int64_t* device_num_sites(int level) const { return levels_.at(level).num_sites; }
  // Where the form was asked for.
  kernels::PairTablesView rulebook(int index) const { return rulebooks_.pairs(index); }
  kernels::NeighboursView neighbours(int index) const { return rulebooks_.neighbours(index); }
  kernels::TilesView tiles(int index) const { return rulebooks_.tiles(index); }

  // On the device; kernels/points/voxelize.h says what each holds.
  const int32_t* point_to_voxel() const { return point_to_voxel_; }
  const int32_t* sorted_points() const { return sorted_points_; }
  const int64_t* voxel_begin() const { return voxel_begin_; }
  // [samples + 1], of a level that it has been asked for.
  const int64_t* level_sample_begin(int level) const { return levels_.at(level).sample_begin; }
  // [num_sites(level)] MortonKeys of a level, on the device: ascending where the GPU made its maps. Where the CPU did,
  // of levels that it has been asked for.
  const uint64_t* keys(int level) const { return levels_.at(level).keys; }

 private:
  absl::Status TakeSizes();

  GeometryMemory memory_;
  DeviceSizes sizes_;
  DeviceLevels levels_;
  DeviceRulebooks rulebooks_;
  bool has_sizes_ = false;  // of the segment under way: Finish has waited for them
  SiteRooms rooms_;
  bool overflowed_ = false;
  int64_t num_points_ = 0;
  int32_t* point_to_voxel_ = nullptr;
  int32_t* sorted_points_ = nullptr;
  int64_t* voxel_begin_ = nullptr;
};

}  // namespace voxserve
