#pragma once

// DeviceGeometry makes a batch's geometry on a GPU: its voxels, the sites of every level and every rulebook
// (geometry_maker.h defines these). It is the counterpart of BatchGeometry, with rows in Morton order.
//
// The methods Make... record requests. Finish carries them out: it makes levels one after the other, since each depends
// on its parent, and then all rulebooks together. One copy brings the sizes (numbers of sites and pairs) to the host.
// The host waits for this copy:
// - in Finish, after the levels, if no step reads pairs. Rulebooks then take memory only for the sites that exist;
// - in WaitForSizes, after the rulebooks, if a step reads pairs, since the host needs the numbers of pairs too.
//   Rulebooks then take memory for as many sites as the points can make;
// - in WaitForSizes if Begin got capacities of its levels. Steps may be queued before this wait. If a capacity was
//   too small, all levels are empty on the device, and overflowed() is true.
//
// The executor of an execution context owns one and fills it anew for every batch. Its memory comes from the context's
// arenas `batch` and `features` (geometry_memory.h). Methods return RESOURCE_EXHAUSTED if memory does not suffice. Not
// thread-safe.

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/geometry/batch_capacities.h"
#include "engine/geometry/batch_counts.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/geometry/device_levels.h"
#include "engine/geometry/device_rulebooks.h"
#include "engine/geometry/device_sizes.h"
#include "engine/geometry/geometry_maker.h"
#include "engine/geometry/geometry_memory.h"
#include "engine/geometry/point_sampling.h"
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

  // Begins a batch and forgets the batch before. shape.num_selected must be the sampling's number of selected points.
  // `capacities` may have capacities only if the program has at most kernels::kMostHeldLevels levels and no step reads
  // pairs. Without capacities, Finish or WaitForSizes waits for the sizes.
  absl::Status Begin(const DeviceSizes::Shape& shape, BatchCapacities capacities, CudaContext& context);
  // Begins a batch whose work from Begin to QueueSizes is queued already, or will be replayed
  // (executor/captured_batches.h). Queues nothing and takes no memory. Only WaitForSizes and what it makes valid may be
  // called afterwards.
  void BeginReplay(const DeviceSizes::Shape& shape, BatchCapacities capacities, CudaContext& context);

  // Does the same as BatchGeometry::SamplePoints, except that num_valid and selected_points are set when the sizes
  // reach the host. words: a copy of sampling.words() in device memory. max_sample_points: the number of points of the
  // largest sample.
  absl::Status SamplePoints(const PointSampling& sampling, const int64_t* words, int64_t max_sample_points,
                            kernels::VoxelizeParams* points);
  // Does the same as BatchGeometry::Voxelize. The pointers of `fixed` are to device memory. max_voxels 0: no limit.
  absl::Status Voxelize(const kernels::VoxelizeParams& fixed, int64_t max_voxels, kernels::VoxelOrder order);

  absl::Status MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) override;
  absl::Status UniteLevels(int level, int a, int b) override;
  absl::Status FilterLevel(int level, int parent, kernels::SiteFilterParams filter) override;
  absl::Status MakeRulebook(int index, const RulebookRequest& request) override;
  absl::Status SwapRulebook(int index, int of) override;
  // Makes the recorded levels and rulebooks. Waits for the stream in the first case above.
  absl::Status Finish() override;
  absl::Status MakeSampleBegins(absl::Span<const int> levels) override;
  // Sorts all orders together, except those that the rows of a level have already.
  absl::Status MakeOrders(absl::Span<const OrderRequest> orders) override;

  // Begins the geometry of the next segment, whose sites a prune selects by scores. Without capacities, the sizes of
  // the earlier levels must be on the host. The memory of existing features is kept; new levels and rulebooks take
  // other memory.
  void BeginNextSegment();

  // Queues the copy of the sizes to the host, for WaitForSizes. For a batch with capacities, after its last Finish.
  absl::Status QueueSizes();
  // Copies the sizes to the host, unless QueueSizes has done so, and waits for the stream, unless Finish has.
  // Afterwards the members of BatchCounts and the methods below that return sizes are valid. Returns RESOURCE_EXHAUSTED
  // if a rulebook has 2^31 pairs or more: pairs are numbered with 31 bits.
  absl::Status WaitForSizes();

  // Gives scratch memory back, so that the steps may use the memory from now on.
  void ReleaseScratch() { memory_.ReleaseScratch(); }

  // Upload geometry that the CPU made from the same points, in place of the methods above (uploaded_geometry.h). Each
  // waits for the stream. UploadVoxels also sets the members of BatchCounts and the numbers of sites of all levels.
  absl::Status UploadVoxels(const BatchGeometry& made);
  absl::Status UploadRulebook(int index, const RulebookRequest& request, const kernels::RulebookView& made);
  absl::Status UploadSampleBegin(int level, const BatchGeometry& made);
  absl::Status UploadOrders(absl::Span<const OrderRequest> orders, const BatchGeometry& made);
  // Uploads a level's keys as MortonKeys in the CPU's order of rows, so keys(level) is not ascending.
  absl::Status UploadKeys(int level, const BatchGeometry& made);

  bool has_capacities() const { return !capacities_.sites.empty(); }
  // Returns the numbers of sites by level, 0 of those that are not made yet. In a batch with capacities they are
  // capacities until WaitForSizes, at most those of the capacities.
  const std::vector<int64_t>& num_sites() const { return levels_.num_sites(); }
  // After WaitForSizes: returns true if the batch did not fit its capacities.
  bool overflowed() const { return overflowed_; }
  // After WaitForSizes: returns true if num_sites() are the numbers that the batch needs, even if it did not fit its
  // capacities. Returns false if the capacities gave coordinates too few bits, since voxels were then counted wrongly.
  bool has_true_sizes() const;
  // Returns the largest voxel coordinate on each axis. Valid after WaitForSizes; 0 unless VoxelOrigin::kMinimum.
  kernels::Axes max_coordinate() const;
  // [1] in device memory: the number of a level's sites.
  const int64_t* device_num_sites(int level) const { return levels_.at(level).num_sites; }
  // Each view is valid if the rulebook's request asked for its form (RulebookForms).
  kernels::PairTablesView rulebook(int index) const { return rulebooks_.pairs(index); }
  kernels::NeighboursView neighbours(int index) const { return rulebooks_.neighbours(index); }
  kernels::TilesView tiles(int index) const { return rulebooks_.tiles(index); }

  // Each array is in device memory; kernels/points/voxelize.h defines its values.
  const int32_t* point_to_voxel() const { return point_to_voxel_; }
  const int32_t* sorted_points() const { return sorted_points_; }
  const int64_t* voxel_begin() const { return voxel_begin_; }
  // [samples + 1] in device memory, after MakeSampleBegins or UploadSampleBegin of the level.
  const int64_t* level_sample_begin(int level) const { return levels_.at(level).sample_begin; }
  // [num_sites(level)] in device memory, after MakeOrders or UploadOrders: the row at each place of an order. Null if
  // place i is row i.
  const int32_t* row_of_place(int order) const { return orders_[static_cast<size_t>(order)].row_of_place; }
  // In device memory, after MakeOrders or UploadOrders.
  SpreadGroups spread_groups(int order) const { return orders_[static_cast<size_t>(order)].spread; }
  // [num_sites(level)] a level's MortonKeys in device memory. They ascend if the GPU made the level. A level that the
  // CPU made has keys only after UploadKeys.
  const uint64_t* keys(int level) const { return levels_.at(level).keys; }

 private:
  // Forgets the batch before, on the host.
  void Forget(const DeviceSizes::Shape& shape, BatchCapacities capacities, CudaContext& context);
  absl::Status TakeSizes();

  struct Order {
    const int32_t* row_of_place = nullptr;
    SpreadGroups spread;
  };
  Order& OrderAt(int index);

  GeometryMemory memory_;
  DeviceSizes sizes_;
  DeviceLevels levels_;
  DeviceRulebooks rulebooks_;
  bool has_sizes_ = false;         // Finish has waited for the sizes of the current segment
  bool has_queued_sizes_ = false;  // QueueSizes was called
  BatchCapacities capacities_;
  bool overflowed_ = false;
  int64_t num_points_ = 0;
  int32_t* point_to_voxel_ = nullptr;
  int32_t* sorted_points_ = nullptr;
  int64_t* voxel_begin_ = nullptr;
  std::vector<Order> orders_;
};

}  // namespace voxserve
