// What a batch is made of: its voxels, its levels, and the sizes that come back.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/geometry/device_geometry.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/coordinates/sample_begins.h"
#include "kernels/points/voxel_limit.h"

namespace voxserve {

absl::Status DeviceGeometry::CheckRows(int64_t rows, const char* what) {
  if (rows <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(absl::StrCat("a batch of up to ", rows, " ", what, "; the limit is ",
                                                              std::numeric_limits<int32_t>::max())),
                    error_reason::kOutOfMemory);
}

absl::StatusOr<void*> DeviceGeometry::Scratch(size_t bytes) {
  if (!goes_on_) context_->features.Reset();
  ASSIGN_OR_RETURN(char* data, context_->features.Take(static_cast<int64_t>(bytes)));
  return data;
}

DeviceGeometry::Sizes DeviceGeometry::CutSizes(int64_t* begin) const {
  Sizes sizes{};
  const auto take = [&](int64_t count) {
    int64_t* const array = begin == nullptr ? nullptr : begin + sizes.count;
    sizes.count += count;
    return array;
  };
  const int64_t samples = shape_.num_samples;
  sizes.sample_begin = take(samples + 1);
  sizes.num_invalid = take(samples);
  sizes.num_out_of_range = take(samples);
  sizes.num_dropped_points = take(samples);
  sizes.num_dropped_voxels = take(samples);
  sizes.num_sites = take(shape_.num_levels);
  sizes.beyond_limits = take(samples * shape_.num_levels);
  sizes.uses_grid = take(shape_.num_levels);
  const bool has_sample = shape_.num_selected > 0;
  sizes.num_valid = take(has_sample ? samples : 0);
  sizes.selected = take((shape_.num_selected + 1) / 2);
  sizes.offset_begin = take(offsets_before_.back());
  return sizes;
}

absl::Status DeviceGeometry::Begin(const Shape& shape, CudaContext& context) {
  context_ = &context;
  shape_ = shape;
  rulebook_offsets_.assign(shape.rulebook_offsets.begin(), shape.rulebook_offsets.end());
  offsets_before_.assign(1, 0);
  for (const int32_t num_offsets : rulebook_offsets_)
    offsets_before_.push_back(offsets_before_.back() + num_offsets + 1);
  levels_.assign(static_cast<size_t>(shape.num_levels), Level{});
  rulebooks_.assign(rulebook_offsets_.size(), DeviceRulebook{});
  num_grid_fallbacks_ = 0;
  grid_levels_.clear();
  added_levels_.clear();
  searches_.clear();
  goes_on_ = false;
  if (!context_->is_grid_clean && context_->grid_cells.data() != nullptr) {  // the batch before failed half-way
    RETURN_IF_CUDA_ERROR(cudaMemsetAsync(context_->grid_cells.data(), 0xFF,
                                         static_cast<size_t>(context_->grid_cells.bytes()), stream().get()));
    context_->is_grid_clean = true;
  }
  const int64_t count = CutSizes(nullptr).count;
  RETURN_IF_ERROR(context.download.Reserve(count * static_cast<int64_t>(sizeof(int64_t))));
  ASSIGN_OR_RETURN(int64_t * sizes, context.batch.TakeArray<int64_t>(count));
  // What a step that does not run would write is 0 then.
  RETURN_IF_CUDA_ERROR(cudaMemsetAsync(sizes, 0, static_cast<size_t>(count) * sizeof(int64_t), stream().get()));
  sizes_ = CutSizes(sizes);
  return absl::OkStatus();
}

absl::Status DeviceGeometry::SamplePoints(const PointSampling& sampling, const int64_t* words,
                                          int64_t max_sample_points, kernels::VoxelizeParams* points) {
  if (sampling.is_empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRows(points->num_points, "points"));
  auto* const selected = reinterpret_cast<int32_t*>(sizes_.selected);
  kernels::FarthestPointSampleParams sample = sampling.SampleParams(*points, words);
  sample.max_sample_points = max_sample_points;
  sample.num_valid = sizes_.num_valid;
  sample.selected = selected;
  ASSIGN_OR_RETURN(sample.workspace, Scratch(kernels::cuda::FarthestPointSampleWorkspaceBytes(sample)));
  RETURN_IF_CUDA_ERROR(kernels::cuda::FarthestPointSample(sample, stream().get()));
  if (!sampling.restricts_network()) return absl::OkStatus();
  ASSIGN_OR_RETURN(uint8_t * point_mask, context_->batch.TakeArray<uint8_t>(points->num_points));
  kernels::SelectionMaskParams mask = sampling.MaskParams(*points, words);
  mask.selected = selected;
  mask.mask = point_mask;
  RETURN_IF_CUDA_ERROR(kernels::cuda::SelectionMask(mask, stream().get()));
  points->is_valid = point_mask;
  return absl::OkStatus();
}

absl::Status DeviceGeometry::Voxelize(const kernels::VoxelizeParams& fixed, int64_t max_voxels,
                                      kernels::VoxelOrder order) {
  RETURN_IF_ERROR(CheckRows(fixed.num_points, "points"));
  DeviceArena& arena = context_->batch;
  Level& voxels = levels_[0];
  voxels.capacity = fixed.num_points;
  voxels.first_sites = fixed.num_points;
  voxels.num_sites = sizes_.sample_begin + shape_.num_samples;
  kernels::VoxelizeParams params = fixed;
  ASSIGN_OR_RETURN(voxels.keys, arena.TakeArray<uint64_t>(fixed.num_points));
  ASSIGN_OR_RETURN(point_to_voxel_, arena.TakeArray<int32_t>(fixed.num_points));
  ASSIGN_OR_RETURN(sorted_points_, arena.TakeArray<int32_t>(fixed.num_points));
  ASSIGN_OR_RETURN(voxel_begin_, arena.TakeArray<int64_t>(fixed.num_points + 1));
  ASSIGN_OR_RETURN(params.sample_origin, arena.TakeArray<kernels::Axes>(shape_.num_samples));
  params.keys = voxels.keys;
  params.point_to_voxel = point_to_voxel_;
  params.sorted_points = sorted_points_;
  params.voxel_begin = voxel_begin_;
  params.sample_begin = sizes_.sample_begin;
  params.num_invalid = sizes_.num_invalid;
  params.num_out_of_range = sizes_.num_out_of_range;
  ASSIGN_OR_RETURN(params.workspace, Scratch(kernels::cuda::VoxelizeWorkspaceBytes(params)));
  RETURN_IF_CUDA_ERROR(kernels::cuda::Voxelize(params, stream().get()));
  if (max_voxels > 0) {
    kernels::VoxelLimitParams limit{.voxels = params,
                                    .max_voxels = max_voxels,
                                    .order = order,
                                    .num_dropped_voxels = sizes_.num_dropped_voxels,
                                    .num_dropped_points = sizes_.num_dropped_points};
    ASSIGN_OR_RETURN(limit.workspace, Scratch(kernels::cuda::LimitVoxelsWorkspaceBytes(limit)));
    RETURN_IF_CUDA_ERROR(kernels::cuda::LimitVoxels(limit, stream().get()));
  }
  return absl::OkStatus();
}

absl::Status DeviceGeometry::AddLevel(int level, int parent, kernels::OutputCoordinatesParams rule) {
  const Level& from = levels_[static_cast<size_t>(parent)];
  Level& made = levels_[static_cast<size_t>(level)];
  rule.num_samples = shape_.num_samples;
  rule.in_keys = from.keys;
  rule.num_in = from.capacity;
  rule.device_num_in = from.num_sites;
  RETURN_IF_ERROR(CheckRows(kernels::NumOutputCandidates(rule), "candidates for a level's sites"));
  const bool is_finer = kernels::MakesFinerSites(rule.rule);
  const kernels::OutputReach reach = is_finer ? kernels::OutputReach() : from.reach.Then(rule);
  // Quotients are no more than their inputs, and levels of them that are made together have room for as many.
  if (!is_finer && !kernels::OutputsAreQuotients(rule) &&
      __builtin_mul_overflow(from.first_sites, reach.OutputsAnInput(), &rule.most_outputs)) {
    rule.most_outputs = std::numeric_limits<int64_t>::max();
  }
  rule.out_capacity = kernels::OutputCoordinatesCapacity(rule);
  RETURN_IF_ERROR(TakeKeys(level, parent, rule.out_capacity));
  made.reach = reach;
  if (!is_finer) made.first_sites = from.first_sites;
  rule.out_keys = made.keys;
  rule.num_out = sizes_.num_sites + level;
  rule.num_beyond_limits = sizes_.beyond_limits + int64_t{level} * shape_.num_samples;
  if (kernels::CellsAreBlocks(rule.geometry) && kernels::cuda::CanBeChained({&rule, 1})) {
    ASSIGN_OR_RETURN(rule.first_in_rows, context_->batch.TakeArray<int32_t>(made.capacity));
  }
  made.made_by = rule;
  return absl::OkStatus();
}

absl::Status DeviceGeometry::AddUnion(int level, int a, int b) {
  const Level& first = levels_[static_cast<size_t>(a)];
  const Level& second = levels_[static_cast<size_t>(b)];
  const int64_t capacity = first.capacity + second.capacity;
  RETURN_IF_ERROR(CheckRows(capacity, "sites of two levels"));
  RETURN_IF_ERROR(TakeKeys(level, a, capacity));
  Level& made = levels_[static_cast<size_t>(level)];
  made.made_by = kernels::SiteUnionParams{.a_keys = first.keys,
                                          .num_a = first.capacity,
                                          .device_num_a = first.num_sites,
                                          .b_keys = second.keys,
                                          .num_b = second.capacity,
                                          .device_num_b = second.num_sites,
                                          .out_keys = made.keys,
                                          .num_out = sizes_.num_sites + level};
  return absl::OkStatus();
}

absl::Status DeviceGeometry::AddFiltered(int level, int parent, kernels::SiteFilterParams filter) {
  const Level& from = levels_[static_cast<size_t>(parent)];
  RETURN_IF_ERROR(TakeKeys(level, parent, from.capacity));
  Level& made = levels_[static_cast<size_t>(level)];
  made.first_sites = from.first_sites;
  made.reach = from.reach;
  filter.dimension = shape_.dimension;
  filter.in_keys = from.keys;
  filter.num_in = from.capacity;
  filter.device_num_in = from.num_sites;
  filter.out_keys = made.keys;
  filter.num_out = sizes_.num_sites + level;
  made.made_by = filter;
  return absl::OkStatus();
}

absl::Status DeviceGeometry::TakeKeys(int index, int parent, int64_t capacity) {
  Level& level = levels_[static_cast<size_t>(index)];
  added_levels_.push_back(index);
  level.parent = parent;
  level.capacity = capacity;
  level.first_sites = capacity;
  level.num_sites = sizes_.num_sites + index;
  ASSIGN_OR_RETURN(level.keys, context_->batch.TakeArray<uint64_t>(capacity));
  return absl::OkStatus();
}

absl::Status DeviceGeometry::MakeLevels() {
  using Rule = kernels::OutputCoordinatesParams;
  std::vector<Rule> chain;
  for (size_t i = 0; i < added_levels_.size();) {
    const auto level = [&](size_t number) -> Level& { return levels_[static_cast<size_t>(added_levels_[number])]; };
    auto& made_by = level(i).made_by;
    if (auto* const united = std::get_if<kernels::SiteUnionParams>(&made_by)) {
      ASSIGN_OR_RETURN(united->workspace, Scratch(kernels::cuda::SiteUnionWorkspaceBytes(*united)));
      RETURN_IF_CUDA_ERROR(kernels::cuda::SiteUnion(*united, stream().get()));
      ++i;
      continue;
    }
    if (auto* const filter = std::get_if<kernels::SiteFilterParams>(&made_by)) {
      ASSIGN_OR_RETURN(filter->workspace, Scratch(kernels::cuda::SiteFilterWorkspaceBytes(*filter)));
      RETURN_IF_CUDA_ERROR(kernels::cuda::SiteFilter(*filter, stream().get()));
      ++i;
      continue;
    }
    chain.assign(1, std::get<Rule>(made_by));
    for (++i; i < added_levels_.size() && level(i).parent == added_levels_[i - 1]; ++i) {
      const auto* const next = std::get_if<Rule>(&level(i).made_by);
      if (next == nullptr) break;
      chain.push_back(*next);
      if (kernels::cuda::CanBeChained(chain)) continue;
      chain.pop_back();
      break;
    }
    kernels::OutputCoordinatesParams& first = chain.front();
    if (kernels::cuda::CanBeChained(chain)) {
      ASSIGN_OR_RETURN(first.workspace, Scratch(kernels::cuda::OutputCoordinatesChainWorkspaceBytes(chain)));
      RETURN_IF_CUDA_ERROR(kernels::cuda::OutputCoordinatesChain(chain, stream().get()));
    } else {
      ASSIGN_OR_RETURN(first.workspace, Scratch(kernels::cuda::OutputCoordinatesWorkspaceBytes(first)));
      RETURN_IF_CUDA_ERROR(kernels::cuda::OutputCoordinates(first, stream().get()));
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceGeometry::MakeSampleBegin(int index) {
  Level& level = levels_[static_cast<size_t>(index)];
  ASSIGN_OR_RETURN(level.sample_begin, context_->batch.TakeArray<int64_t>(shape_.num_samples + 1));
  RETURN_IF_CUDA_ERROR(kernels::cuda::SampleBegins({.dimension = shape_.dimension,
                                                    .num_samples = shape_.num_samples,
                                                    .keys = level.keys,
                                                    .num_keys = level.num_sites,
                                                    .sample_begin = level.sample_begin},
                                                   stream().get()));
  return absl::OkStatus();
}

void DeviceGeometry::BeginNextSegment() {
  goes_on_ = true;
  // Capacities are what memory was taken for; what was made has no more sites than it has.
  for (size_t i = 0; i < levels_.size(); ++i) {
    Level& level = levels_[i];
    level.capacity = std::min(level.capacity, std::max<int64_t>(num_sites_[i], 1));
    level.first_sites = level.capacity;
    level.reach = {};
  }
}

absl::Status DeviceGeometry::QueueSizes() {
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(context_->download.data(), sizes_.sample_begin,
                                       static_cast<size_t>(sizes_.count) * sizeof(int64_t), cudaMemcpyDeviceToHost,
                                       stream().get()));
  return absl::OkStatus();
}

absl::Status DeviceGeometry::TakeSizes() {
  const auto* copied = reinterpret_cast<const int64_t*>(context_->download.data());
  host_sizes_.assign(copied, copied + sizes_.count);
  const Sizes sizes = CutSizes(host_sizes_.data());
  const auto samples = static_cast<size_t>(shape_.num_samples);
  sample_begin.assign(sizes.sample_begin, sizes.sample_begin + samples + 1);
  num_invalid.assign(sizes.num_invalid, sizes.num_invalid + samples);
  num_out_of_range.assign(sizes.num_out_of_range, sizes.num_out_of_range + samples);
  num_dropped_points.assign(sizes.num_dropped_points, sizes.num_dropped_points + samples);
  num_dropped_voxels.assign(sizes.num_dropped_voxels, sizes.num_dropped_voxels + samples);
  num_valid.clear();
  selected_points.clear();
  if (shape_.num_selected > 0) {
    num_valid.assign(sizes.num_valid, sizes.num_valid + samples);
    const auto* const selected = reinterpret_cast<const int32_t*>(sizes.selected);
    selected_points.assign(selected, selected + shape_.num_selected);
  }
  num_beyond_limits.assign(samples, 0);
  for (int level = 0; level < shape_.num_levels; ++level) {
    const int64_t* beyond = sizes.beyond_limits + static_cast<size_t>(level) * samples;
    std::transform(num_beyond_limits.begin(), num_beyond_limits.end(), beyond, num_beyond_limits.begin(),
                   std::plus<>());
  }
  num_sites_.assign(sizes.num_sites, sizes.num_sites + shape_.num_levels);
  num_sites_[0] = sample_begin.back();
  for (size_t i = 0; i < rulebooks_.size(); ++i) {
    if (rulebooks_[i].swap_of < 0) RETURN_IF_ERROR(CheckRows(sizes.offset_begin[offsets_before_[i + 1] - 1], "pairs"));
  }
  num_grid_fallbacks_ =
      static_cast<int64_t>(grid_levels_.size()) - std::count(sizes.uses_grid, sizes.uses_grid + shape_.num_levels, 1);
  return absl::OkStatus();
}

}  // namespace voxserve
