#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/geometry/device_geometry.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/curves/site_order.h"
#include "kernels/coordinates/morton_key.h"

namespace voxserve {

absl::Status DeviceGeometry::Begin(const DeviceSizes::Shape& shape, BatchCapacities capacities, CudaContext& context) {
  Forget(shape, std::move(capacities), context);
  return sizes_.TakeMemory();
}

void DeviceGeometry::BeginReplay(const DeviceSizes::Shape& shape, BatchCapacities capacities, CudaContext& context) {
  Forget(shape, std::move(capacities), context);
  has_queued_sizes_ = true;
}

void DeviceGeometry::Forget(const DeviceSizes::Shape& shape, BatchCapacities capacities, CudaContext& context) {
  memory_.Begin(context);
  has_sizes_ = has_queued_sizes_ = overflowed_ = false;
  capacities_ = std::move(capacities);
  num_points_ = 0;
  point_to_voxel_ = sorted_points_ = nullptr;
  voxel_begin_ = nullptr;
  orders_.clear();
  sizes_.Begin(shape, memory_);
  levels_.Begin(sizes_, memory_);
  rulebooks_.Begin(sizes_, levels_, memory_);
}

absl::Status DeviceGeometry::SamplePoints(const PointSampling& sampling, const int64_t* words,
                                          int64_t max_sample_points, kernels::VoxelizeParams* points) {
  if (sampling.is_empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckNumRows(points->num_points, "points"));
  const cudaStream_t stream = memory_.stream().get();
  auto* const selected = reinterpret_cast<int32_t*>(sizes_.on_device().selected);
  kernels::FarthestPointSampleParams sample = sampling.SampleParams(*points, words);
  sample.max_sample_points = max_sample_points;
  sample.num_valid = sizes_.on_device().num_valid;
  sample.selected = selected;
  ASSIGN_OR_RETURN(sample.workspace, memory_.TakeScratch(kernels::cuda::FarthestPointSampleWorkspaceBytes(sample)));
  RETURN_IF_CUDA_ERROR(kernels::cuda::FarthestPointSample(sample, stream));
  if (!sampling.restricts_network()) return absl::OkStatus();
  ASSIGN_OR_RETURN(uint8_t * point_mask, memory_.Take<uint8_t>(points->num_points));
  kernels::SelectionMaskParams mask = sampling.MaskParams(*points, words);
  mask.selected = selected;
  mask.mask = point_mask;
  RETURN_IF_CUDA_ERROR(kernels::cuda::SelectionMask(mask, stream));
  points->is_valid = point_mask;
  return absl::OkStatus();
}

absl::Status DeviceGeometry::Voxelize(const kernels::VoxelizeParams& fixed, int64_t max_voxels,
                                      kernels::VoxelOrder order) {
  RETURN_IF_ERROR(CheckNumRows(fixed.num_points, "points"));
  const DeviceSizes::Arrays& sizes = sizes_.on_device();
  kernels::VoxelizeParams params = fixed;
  num_points_ = fixed.num_points;
  const int64_t point_capacity = std::max(fixed.num_points, capacities_.points);
  params.axis_bits = capacities_.axis_bits;
  ASSIGN_OR_RETURN(params.keys, levels_.AddVoxels(point_capacity, kernels::VoxelExtent(params)));
  ASSIGN_OR_RETURN(point_to_voxel_, memory_.Take<int32_t>(point_capacity));
  ASSIGN_OR_RETURN(sorted_points_, memory_.Take<int32_t>(point_capacity));
  ASSIGN_OR_RETURN(voxel_begin_, memory_.Take<int64_t>(point_capacity + 1));
  ASSIGN_OR_RETURN(params.sample_origin, memory_.Take<kernels::Axes>(sizes_.num_samples()));
  params.point_to_voxel = point_to_voxel_;
  params.sorted_points = sorted_points_;
  params.voxel_begin = voxel_begin_;
  params.sample_begin = sizes.sample_begin;
  params.num_invalid = sizes.num_invalid;
  params.num_out_of_range = sizes.num_out_of_range;
  if (fixed.origin == kernels::VoxelOrigin::kMinimum) params.max_coordinate = sizes.max_coordinate;
  ASSIGN_OR_RETURN(params.workspace, memory_.TakeScratch(kernels::cuda::VoxelizeWorkspaceBytes(params)));
  RETURN_IF_CUDA_ERROR(kernels::cuda::Voxelize(params, memory_.stream().get()));
  if (max_voxels > 0) {
    kernels::VoxelLimitParams limit{.voxels = params,
                                    .max_voxels = max_voxels,
                                    .order = order,
                                    .num_dropped_voxels = sizes.num_dropped_voxels,
                                    .num_dropped_points = sizes.num_dropped_points};
    ASSIGN_OR_RETURN(limit.workspace, memory_.TakeScratch(kernels::cuda::LimitVoxelsWorkspaceBytes(limit)));
    RETURN_IF_CUDA_ERROR(kernels::cuda::LimitVoxels(limit, memory_.stream().get()));
  }
  return absl::OkStatus();
}

absl::Status DeviceGeometry::MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) {
  return levels_.Add(level, parent, rule);
}

absl::Status DeviceGeometry::UniteLevels(int level, int a, int b) { return levels_.AddUnion(level, a, b); }

absl::Status DeviceGeometry::FilterLevel(int level, int parent, kernels::SiteFilterParams filter) {
  return levels_.AddFiltered(level, parent, filter);
}

absl::Status DeviceGeometry::MakeRulebook(int index, const RulebookRequest& request) {
  rulebooks_.Add(index, request);
  return absl::OkStatus();
}

absl::Status DeviceGeometry::SwapRulebook(int index, int of) {
  rulebooks_.Swap(index, of);
  return absl::OkStatus();
}

absl::Status DeviceGeometry::Finish() {
  RETURN_IF_ERROR(levels_.Make());
  if (has_capacities()) {
    RETURN_IF_ERROR(levels_.Hold(capacities_, num_points_, point_to_voxel_));
    return rulebooks_.Make(/*has_sizes=*/true);
  }
  if (!rulebooks_.AsksForPairs()) {
    RETURN_IF_ERROR(sizes_.QueueCopy());
    RETURN_IF_ERROR(memory_.stream().Synchronize());
    RETURN_IF_ERROR(TakeSizes());
    levels_.ShrinkToSites();
    has_sizes_ = true;
  }
  return rulebooks_.Make(has_sizes_);
}

absl::Status DeviceGeometry::MakeSampleBegins(absl::Span<const int> levels) { return levels_.MakeSampleBegins(levels); }

DeviceGeometry::Order& DeviceGeometry::OrderAt(int index) {
  if (orders_.size() <= static_cast<size_t>(index)) orders_.resize(static_cast<size_t>(index) + 1);
  return orders_[static_cast<size_t>(index)];
}

absl::Status DeviceGeometry::MakeOrders(absl::Span<const OrderRequest> orders) {
  const auto sites = [this](int index) {
    const DeviceLevels::Level& level = levels_.at(index);
    return kernels::LevelSites{
        .keys = level.keys, .num_sites = level.capacity, .device_num_sites = level.num_sites, .extent = level.extent};
  };
  std::vector<kernels::SiteOrder> sorted;
  int64_t num_places = 0;
  const int32_t num_samples = sizes_.num_samples();
  for (const OrderRequest& request : orders) {
    const SiteOrderSpec& spec = request.spec;
    OrderAt(request.index) = {};
    if (kernels::IsMortonOrder(spec.curve, spec.windows)) continue;
    kernels::SiteOrder order{.curve = spec.curve,
                             .sites = sites(spec.level),
                             .halvings = spec.halvings,
                             .windows = spec.windows,
                             .spread_size = spec.spread_size};
    if (spec.depth_level >= 0) order.depth_sites = sites(spec.depth_level);
    if (spec.spread_size > 0) {
      const int64_t max_count = kernels::MaxSpreadGroups(order, num_samples);
      ASSIGN_OR_RETURN(order.spread_groups, memory_.TakeSized<kernels::SpreadGroup>(max_count));
      ASSIGN_OR_RETURN(order.num_spread_groups, memory_.TakeSized<int32_t>(1));
      OrderAt(request.index).spread = {
          .groups = order.spread_groups, .count = order.num_spread_groups, .max_count = max_count};
    }
    num_places += order.sites.num_sites;
    sorted.push_back(order);
  }
  if (sorted.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(int32_t * row_of_place, memory_.TakeSized<int32_t>(num_places));
  ASSIGN_OR_RETURN(void* const workspace,
                   memory_.TakeScratch(kernels::cuda::SiteOrdersWorkspaceBytes(sorted, num_samples)));
  RETURN_IF_CUDA_ERROR(kernels::cuda::SiteOrders(sorted, num_samples, row_of_place, workspace, memory_.stream().get()));
  for (const OrderRequest& request : orders) {
    if (kernels::IsMortonOrder(request.spec.curve, request.spec.windows)) continue;
    OrderAt(request.index).row_of_place = row_of_place;
    row_of_place += levels_.at(request.spec.level).capacity;
  }
  return absl::OkStatus();
}

void DeviceGeometry::BeginNextSegment() {
  memory_.KeepFeatures();
  levels_.ShrinkToSites();
  has_sizes_ = false;
}

absl::Status DeviceGeometry::QueueSizes() {
  has_queued_sizes_ = true;
  return sizes_.QueueCopy();
}

absl::Status DeviceGeometry::WaitForSizes() {
  if (has_sizes_) return absl::OkStatus();
  if (!has_queued_sizes_) RETURN_IF_ERROR(sizes_.QueueCopy());
  RETURN_IF_ERROR(memory_.stream().Synchronize());
  return TakeSizes();
}

kernels::Axes DeviceGeometry::max_coordinate() const {
  const int64_t* const counted = sizes_.on_host().max_coordinate;
  kernels::Axes most;
  std::transform(counted, counted + most.size(), most.begin(), [](int64_t c) { return static_cast<int32_t>(c); });
  return most;
}

bool DeviceGeometry::has_true_sizes() const {
  const kernels::Axes most = max_coordinate();
  for (size_t axis = 0; axis < most.size(); ++axis) {
    const int32_t bits = capacities_.axis_bits[axis];
    if (bits > 0 && !kernels::FitsAxisBits(most[axis], bits)) return false;
  }
  return true;
}

absl::Status DeviceGeometry::TakeSizes() {
  sizes_.TakeCopy();
  levels_.TakeNumSites();
  const std::vector<int64_t>& num_sites = levels_.num_sites();
  const DeviceSizes::Arrays& sizes = sizes_.on_host();
  overflowed_ = has_capacities() && !std::equal(num_sites.begin(), num_sites.end(), sizes.held_sites);
  const auto samples = static_cast<size_t>(sizes_.num_samples());
  sample_begin.assign(sizes.sample_begin, sizes.sample_begin + samples + 1);
  num_invalid.assign(sizes.num_invalid, sizes.num_invalid + samples);
  num_out_of_range.assign(sizes.num_out_of_range, sizes.num_out_of_range + samples);
  num_dropped_points.assign(sizes.num_dropped_points, sizes.num_dropped_points + samples);
  num_dropped_voxels.assign(sizes.num_dropped_voxels, sizes.num_dropped_voxels + samples);
  num_valid.clear();
  selected_points.clear();
  if (sizes_.num_selected() > 0) {
    num_valid.assign(sizes.num_valid, sizes.num_valid + samples);
    const auto* const selected = reinterpret_cast<const int32_t*>(sizes.selected);
    selected_points.assign(selected, selected + sizes_.num_selected());
  }
  num_beyond_limits.assign(samples, 0);
  for (int level = 0; level < sizes_.num_levels(); ++level) {
    const int64_t* beyond = sizes.beyond_limits + static_cast<size_t>(level) * samples;
    std::transform(num_beyond_limits.begin(), num_beyond_limits.end(), beyond, num_beyond_limits.begin(),
                   std::plus<>());
  }
  return rulebooks_.CheckNumPairs();
}

absl::Status DeviceGeometry::UploadVoxels(const BatchGeometry& made) {
  static_cast<BatchCounts&>(*this) = made;
  std::vector<int64_t> num_sites;
  for (int level = 0; level < sizes_.num_levels(); ++level) num_sites.push_back(made.num_sites(level));
  levels_.SetNumSites(std::move(num_sites));
  const size_t num_points = made.point_to_voxel.size(), num_begins = made.keys(0).size() + 1;
  ASSIGN_OR_RETURN(point_to_voxel_, memory_.TakeUploaded(made.point_to_voxel.data(), num_points));
  ASSIGN_OR_RETURN(sorted_points_, memory_.TakeUploaded(made.sorted_points.data(), num_points));
  ASSIGN_OR_RETURN(voxel_begin_, memory_.TakeUploaded(made.voxel_begin.data(), num_begins));
  return memory_.stream().Synchronize();
}

absl::Status DeviceGeometry::UploadRulebook(int index, const RulebookRequest& request,
                                            const kernels::RulebookView& made) {
  return rulebooks_.Upload(index, request, made);
}

absl::Status DeviceGeometry::UploadSampleBegin(int level, const BatchGeometry& made) {
  RETURN_IF_ERROR(levels_.UploadSampleBegin(level, made.level_sample_begin(level)));
  return memory_.stream().Synchronize();
}

absl::Status DeviceGeometry::UploadOrders(absl::Span<const OrderRequest> orders, const BatchGeometry& made) {
  for (const OrderRequest& request : orders) {
    const kernels::ScratchVector<int32_t>& order = made.row_of_place(request.index);
    Order& uploaded = OrderAt(request.index);
    uploaded = {};
    ASSIGN_OR_RETURN(uploaded.row_of_place, memory_.TakeUploaded(order.data(), order.size()));
    if (request.spec.spread_size == 0) continue;
    const SpreadGroups spread = made.spread_groups(request.index);
    const auto count = static_cast<size_t>(*spread.count);
    uploaded.spread.max_count = spread.max_count;
    ASSIGN_OR_RETURN(uploaded.spread.groups, memory_.TakeUploaded(spread.groups, count));
    ASSIGN_OR_RETURN(uploaded.spread.count, memory_.TakeUploaded(spread.count, 1));
  }
  return memory_.stream().Synchronize();
}

absl::Status DeviceGeometry::UploadKeys(int level, const BatchGeometry& made) {
  const kernels::CoordinateKey layout(sizes_.dimension());
  kernels::ScratchVector<uint64_t> keys = made.keys(level);
  std::transform(keys.begin(), keys.end(), keys.begin(),
                 [&](uint64_t key) { return kernels::ToMortonKey(layout, key); });
  RETURN_IF_ERROR(levels_.UploadKeys(level, keys));
  return memory_.stream().Synchronize();
}

}  // namespace voxserve
