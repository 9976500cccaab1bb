#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "engine/geometry/device_levels.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/coordinates/check_capacities.h"
#include "kernels/coordinates/neighbour_search.h"
#include "kernels/coordinates/sample_begins.h"

namespace voxserve {

void DeviceLevels::Begin(const DeviceSizes& sizes, GeometryMemory& memory) {
  sizes_ = &sizes;
  memory_ = &memory;
  levels_.assign(static_cast<size_t>(sizes.num_levels()), Level{});
  added_.clear();
}

absl::StatusOr<uint64_t*> DeviceLevels::AddVoxels(int64_t num_points, const kernels::Axes& extent) {
  Level& voxels = At(0);
  voxels.extent = extent;
  voxels.capacity = num_points;
  voxels.first_sites = num_points;
  voxels.num_sites = sizes_->on_device().sample_begin + sizes_->num_samples();
  ASSIGN_OR_RETURN(voxels.keys, memory_->Take<uint64_t>(num_points));
  return voxels.keys;
}

absl::Status DeviceLevels::Add(int level, int parent, kernels::OutputCoordinatesParams rule) {
  const Level& from = at(parent);
  Level& made = At(level);
  rule.num_samples = sizes_->num_samples();
  rule.in_keys = from.keys;
  rule.num_in = from.capacity;
  rule.device_num_in = from.num_sites;
  rule.in_extent = from.extent;
  made.extent = kernels::OutputExtent(rule);
  RETURN_IF_ERROR(CheckNumRows(kernels::NumOutputCandidates(rule), "candidates for a level's sites"));
  const bool is_finer = kernels::MakesFinerSites(rule.rule);
  const kernels::OutputReach reach = is_finer ? kernels::OutputReach() : from.reach.Then(rule);
  // A rule whose outputs are quotients (OutputsAreQuotients) makes at most one site per input, so it needs no other
  // bound. A chained launch also requires that much room on each of its levels.
  if (!is_finer && !kernels::OutputsAreQuotients(rule) &&
      __builtin_mul_overflow(from.first_sites, reach.OutputsAnInput(), &rule.most_outputs)) {
    rule.most_outputs = std::numeric_limits<int64_t>::max();
  }
  rule.out_capacity = kernels::OutputCoordinatesCapacity(rule);
  RETURN_IF_ERROR(TakeKeys(level, parent, rule.out_capacity));
  made.reach = reach;
  if (!is_finer) made.first_sites = from.first_sites;
  rule.out_keys = made.keys;
  rule.num_out = sizes_->on_device().num_sites + level;
  rule.num_beyond_limits = sizes_->on_device().beyond_limits + int64_t{level} * sizes_->num_samples();
  // kFloor says nothing about a kernel, so only the level's rulebooks know whether they read this.
  if (kernels::cuda::CanBeChained({&rule, 1})) {
    ASSIGN_OR_RETURN(rule.first_in_rows, memory_->Take<int32_t>(made.capacity));
  }
  made.made_by = rule;
  return absl::OkStatus();
}

absl::Status DeviceLevels::AddUnion(int level, int a, int b) {
  const Level& first = at(a);
  const Level& second = at(b);
  const int64_t capacity = first.capacity + second.capacity;
  RETURN_IF_ERROR(CheckNumRows(capacity, "sites of two levels"));
  RETURN_IF_ERROR(TakeKeys(level, a, capacity));
  Level& made = At(level);
  for (size_t axis = 0; axis < made.extent.size(); ++axis) {
    const bool are_known = first.extent[axis] > 0 && second.extent[axis] > 0;
    made.extent[axis] = are_known ? std::max(first.extent[axis], second.extent[axis]) : 0;
  }
  made.made_by = kernels::SiteUnionParams{.a_keys = first.keys,
                                          .num_a = first.capacity,
                                          .device_num_a = first.num_sites,
                                          .b_keys = second.keys,
                                          .num_b = second.capacity,
                                          .device_num_b = second.num_sites,
                                          .out_keys = made.keys,
                                          .num_out = sizes_->on_device().num_sites + level};
  return absl::OkStatus();
}

absl::Status DeviceLevels::AddFiltered(int level, int parent, kernels::SiteFilterParams filter) {
  const Level& from = at(parent);
  RETURN_IF_ERROR(TakeKeys(level, parent, from.capacity));
  Level& made = At(level);
  made.first_sites = from.first_sites;
  made.reach = from.reach;
  made.extent = from.extent;
  filter.dimension = sizes_->dimension();
  filter.in_keys = from.keys;
  filter.num_in = from.capacity;
  filter.device_num_in = from.num_sites;
  filter.out_keys = made.keys;
  filter.num_out = sizes_->on_device().num_sites + level;
  made.made_by = filter;
  return absl::OkStatus();
}

absl::Status DeviceLevels::TakeKeys(int index, int parent, int64_t capacity) {
  Level& level = At(index);
  added_.push_back(index);
  level.parent = parent;
  level.capacity = capacity;
  level.first_sites = capacity;
  level.num_sites = sizes_->on_device().num_sites + index;
  ASSIGN_OR_RETURN(level.keys, memory_->Take<uint64_t>(capacity));
  return absl::OkStatus();
}

absl::Status DeviceLevels::Make() {
  for (size_t i = 0; i < added_.size();) {
    auto& made_by = At(added_[i]).made_by;
    if (auto* const united = std::get_if<kernels::SiteUnionParams>(&made_by)) {
      RETURN_IF_ERROR(MakeUnion(*united));
      ++i;
    } else if (auto* const filter = std::get_if<kernels::SiteFilterParams>(&made_by)) {
      RETURN_IF_ERROR(MakeFiltered(*filter));
      ++i;
    } else {
      ASSIGN_OR_RETURN(i, MakeChain(i));
    }
  }
  added_.clear();
  return absl::OkStatus();
}

absl::Status DeviceLevels::MakeUnion(kernels::SiteUnionParams& params) {
  ASSIGN_OR_RETURN(params.workspace, memory_->TakeScratch(kernels::cuda::SiteUnionWorkspaceBytes(params)));
  RETURN_IF_CUDA_ERROR(kernels::cuda::SiteUnion(params, memory_->stream().get()));
  return absl::OkStatus();
}

absl::Status DeviceLevels::MakeFiltered(kernels::SiteFilterParams& params) {
  ASSIGN_OR_RETURN(params.workspace, memory_->TakeScratch(kernels::cuda::SiteFilterWorkspaceBytes(params)));
  RETURN_IF_CUDA_ERROR(kernels::cuda::SiteFilter(params, memory_->stream().get()));
  return absl::OkStatus();
}

absl::StatusOr<size_t> DeviceLevels::MakeChain(size_t first) {
  using Rule = kernels::OutputCoordinatesParams;
  std::vector<Rule> chain = {std::get<Rule>(at(added_[first]).made_by)};
  size_t end = first + 1;
  for (; end < added_.size() && at(added_[end]).parent == added_[end - 1]; ++end) {
    const auto* const next = std::get_if<Rule>(&at(added_[end]).made_by);
    if (next == nullptr) break;
    chain.push_back(*next);
    if (kernels::cuda::CanBeChained(chain)) continue;
    chain.pop_back();
    break;
  }
  const bool is_chained = kernels::cuda::CanBeChained(chain);
  ASSIGN_OR_RETURN(chain.front().workspace,
                   memory_->TakeScratch(is_chained ? kernels::cuda::OutputCoordinatesChainWorkspaceBytes(chain)
                                                   : kernels::cuda::OutputCoordinatesWorkspaceBytes(chain.front())));
  RETURN_IF_CUDA_ERROR(is_chained ? kernels::cuda::OutputCoordinatesChain(chain, memory_->stream().get())
                                  : kernels::cuda::OutputCoordinates(chain.front(), memory_->stream().get()));
  return end;
}

absl::Status DeviceLevels::MakeSampleBegins(absl::Span<const int> levels) {
  std::vector<kernels::SampleBeginsParams> params;
  for (const int index : levels) {
    Level& level = At(index);
    ASSIGN_OR_RETURN(level.sample_begin, memory_->Take<int64_t>(sizes_->num_samples() + 1));
    params.push_back({.dimension = sizes_->dimension(),
                      .num_samples = sizes_->num_samples(),
                      .keys = level.keys,
                      .num_keys = level.num_sites,
                      .sample_begin = level.sample_begin});
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::SampleBegins(params, memory_->stream().get()));
  return absl::OkStatus();
}

absl::Status DeviceLevels::Hold(const BatchCapacities& capacities, int64_t num_points, int32_t* point_to_voxel) {
  const DeviceSizes::Arrays& sizes = sizes_->on_device();
  kernels::CheckCapacitiesParams params{.num_levels = sizes_->num_levels(),
                                        .num_voxels = sizes.sample_begin + sizes_->num_samples(),
                                        .num_sites = sizes.num_sites,
                                        .max_coordinate = sizes.max_coordinate,
                                        .axis_bits = capacities.axis_bits,
                                        .num_points = num_points,
                                        .point_to_voxel = point_to_voxel,
                                        .held = sizes.held_sites};
  num_sites_.clear();
  for (size_t i = 0; i < levels_.size(); ++i) {
    num_sites_.push_back(std::min(levels_[i].capacity, capacities.sites[i]));
    params.capacities[i] = num_sites_.back();
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::CheckCapacities(params, memory_->stream().get()));
  for (size_t i = 0; i < levels_.size(); ++i) levels_[i].num_sites = sizes.held_sites + i;
  ShrinkToSites();
  return absl::OkStatus();
}

void DeviceLevels::TakeNumSites() {
  const DeviceSizes::Arrays& sizes = sizes_->on_host();
  num_sites_.assign(sizes.num_sites, sizes.num_sites + sizes_->num_levels());
  num_sites_[0] = sizes.sample_begin[sizes_->num_samples()];
}

void DeviceLevels::ShrinkToSites() {
  for (size_t i = 0; i < levels_.size(); ++i) {
    Level& level = levels_[i];
    level.capacity = std::min(level.capacity, std::max<int64_t>(num_sites_[i], 1));
    level.first_sites = level.capacity;
    level.reach = {};
  }
}

absl::Status DeviceLevels::UploadSampleBegin(int level, const int64_t* sample_begin) {
  const auto count = static_cast<size_t>(sizes_->num_samples()) + 1;
  ASSIGN_OR_RETURN(At(level).sample_begin, memory_->TakeUploaded(sample_begin, count));
  return absl::OkStatus();
}

absl::Status DeviceLevels::UploadKeys(int level, const kernels::ScratchVector<uint64_t>& keys) {
  At(level).capacity = static_cast<int64_t>(keys.size());
  ASSIGN_OR_RETURN(At(level).keys, memory_->TakeUploaded(keys.data(), keys.size()));
  return absl::OkStatus();
}

}  // namespace voxserve
