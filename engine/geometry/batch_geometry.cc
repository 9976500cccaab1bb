#include "engine/geometry/batch_geometry.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <memory>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/curves/site_order.h"
#include "kernels/coordinates/site_union.h"

namespace voxserve {
namespace {

// The most scratch memory that one level may take. A candidate takes 16 bytes, so this limit also keeps the number of
// rows below 2^31.
constexpr int64_t kMaxScratchBytes = int64_t{16} << 30;

template <typename T>
int64_t BytesOf(const kernels::ScratchVector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

}  // namespace

kernels::ScratchVector<uint64_t>& BatchGeometry::Level(int index) {
  while (levels_.size() <= static_cast<size_t>(index)) levels_.emplace_back(memory_);
  return levels_[static_cast<size_t>(index)];
}

kernels::Rulebook& BatchGeometry::RulebookAt(int index) {
  while (rulebooks_.size() <= static_cast<size_t>(index)) rulebooks_.push_back(kernels::Rulebook::In(memory_));
  return rulebooks_[static_cast<size_t>(index)];
}

void* BatchGeometry::Workspace(size_t bytes) {
  const size_t words = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
  if (workspace_.size() < words) kernels::Renew(workspace_, words);
  most_workspace_bytes_ = std::max(most_workspace_bytes_, bytes);
  return workspace_.data();
}

void* BatchGeometry::AlignedWorkspace(size_t bytes) {
  constexpr size_t kAlignment = 256;
  size_t space = bytes + kAlignment;
  void* data = Workspace(space);
  return std::align(kAlignment, bytes, data, space);
}

void BatchGeometry::SamplePoints(const PointSampling& sampling, kernels::VoxelizeParams* points) {
  most_workspace_bytes_ = 0;
  point_mask_.clear();
  num_valid.clear();
  selected_points.clear();
  const bool is_numbered = points->num_points <= std::numeric_limits<int32_t>::max();  // else Voxelize refuses them
  if (sampling.is_empty() || !is_numbered) return;
  num_valid.resize(static_cast<size_t>(points->num_samples));
  selected_points.resize(static_cast<size_t>(sampling.num_selected()));
  kernels::FarthestPointSampleParams sample = sampling.SampleParams(*points, sampling.words().data());
  sample.num_valid = num_valid.data();
  sample.selected = selected_points.data();
  sample.workspace = AlignedWorkspace(kernels::cpu::FarthestPointSampleWorkspaceBytes(sample));
  kernels::cpu::FarthestPointSample(sample, *pool_);
  if (!sampling.restricts_network()) return;
  kernels::Renew(point_mask_, static_cast<size_t>(points->num_points));
  kernels::SelectionMaskParams mask = sampling.MaskParams(*points, sampling.words().data());
  mask.selected = selected_points.data();
  mask.mask = point_mask_.data();
  kernels::cpu::SelectionMask(mask, *pool_);
  points->is_valid = point_mask_.data();
}

absl::Status BatchGeometry::Voxelize(const kernels::VoxelizeParams& fixed, int64_t max_voxels,
                                     kernels::VoxelOrder order) {
  if (fixed.num_points > std::numeric_limits<int32_t>::max()) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat("a batch of ", fixed.num_points, " points; the limit is ",
                                                  std::numeric_limits<int32_t>::max())),
        error_reason::kTooManyPoints);
  }
  dimension_ = fixed.dimension;
  num_samples_ = fixed.num_samples;
  num_grid_fallbacks_ = 0;
  most_grid_bytes_ = 0;
  most_hash_bytes_ = 0;
  // An earlier batch of another model may have had more levels, rulebooks and orders.
  for (kernels::ScratchVector<uint64_t>& keys : levels_) keys.clear();
  for (kernels::Rulebook& rulebook : rulebooks_) rulebook.Clear();
  for (kernels::ScratchVector<int32_t>& places : orders_) places.clear();
  const auto num_points = static_cast<size_t>(fixed.num_points);
  const auto num_samples = static_cast<size_t>(fixed.num_samples);
  kernels::ScratchVector<uint64_t>& voxel_keys = Level(0);
  kernels::Renew(voxel_keys, num_points);
  kernels::Renew(point_to_voxel, num_points);
  kernels::Renew(sorted_points, num_points);
  kernels::Renew(voxel_begin, num_points + 1);
  sample_begin.resize(num_samples + 1);
  num_invalid.resize(num_samples);
  num_out_of_range.resize(num_samples);
  sample_origin_.resize(num_samples);
  num_dropped_points.assign(num_samples, 0);
  num_dropped_voxels.assign(num_samples, 0);
  num_beyond_limits.assign(num_samples, 0);
  level_beyond_limits_.resize(num_samples);

  kernels::VoxelizeParams params = fixed;
  params.keys = voxel_keys.data();
  params.point_to_voxel = point_to_voxel.data();
  params.sorted_points = sorted_points.data();
  params.voxel_begin = voxel_begin.data();
  params.sample_begin = sample_begin.data();
  params.num_invalid = num_invalid.data();
  params.num_out_of_range = num_out_of_range.data();
  params.sample_origin = sample_origin_.data();
  params.workspace = Workspace(kernels::VoxelizeWorkspaceBytes(params));
  kernels::cpu::Voxelize(params, *pool_);
  if (max_voxels > 0) {
    kernels::cpu::LimitVoxels({.voxels = params,
                               .max_voxels = max_voxels,
                               .order = order,
                               .num_dropped_voxels = num_dropped_voxels.data(),
                               .num_dropped_points = num_dropped_points.data()},
                              *pool_, memory_);
  }
  voxel_keys.resize(static_cast<size_t>(sample_begin[num_samples]));
  return absl::OkStatus();
}

absl::Status BatchGeometry::MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) {
  kernels::ScratchVector<uint64_t>& keys = Level(level);  // before the parent's keys, since Level may move the vectors
  const kernels::ScratchVector<uint64_t>& parent_keys = levels_[static_cast<size_t>(parent)];
  int64_t num_out = 0;
  rule.num_samples = num_samples_;
  rule.in_keys = parent_keys.data();
  rule.num_in = static_cast<int64_t>(parent_keys.size());
  const int64_t scratch_bytes = 2 * kernels::NumOutputCandidates(rule) * static_cast<int64_t>(sizeof(uint64_t));
  if (scratch_bytes > kMaxScratchBytes) {
    return OutOfMemoryError(absl::StrCat("coordinate level ", level, " has ", kernels::NumOutputCandidates(rule),
                                         " candidates from ", rule.num_in, " sites, which take ", scratch_bytes,
                                         " bytes of scratch; the limit is ", kMaxScratchBytes));
  }
  rule.out_capacity = kernels::OutputCoordinatesCapacity(rule);
  kernels::Renew(keys, static_cast<size_t>(rule.out_capacity));
  rule.out_keys = keys.data();
  rule.num_out = &num_out;
  rule.num_beyond_limits = level_beyond_limits_.data();
  rule.workspace = Workspace(kernels::OutputCoordinatesWorkspaceBytes(rule));
  kernels::cpu::OutputCoordinates(rule, *pool_);
  keys.resize(static_cast<size_t>(num_out));
  std::transform(num_beyond_limits.begin(), num_beyond_limits.end(), level_beyond_limits_.begin(),
                 num_beyond_limits.begin(), std::plus<>());
  return absl::OkStatus();
}

absl::Status BatchGeometry::UniteLevels(int level, int a, int b) {
  kernels::ScratchVector<uint64_t>& united = Level(level);
  const kernels::ScratchVector<uint64_t>& a_keys = keys(a);
  const kernels::ScratchVector<uint64_t>& b_keys = keys(b);
  kernels::Renew(united, a_keys.size() + b_keys.size());
  int64_t num_out = 0;
  kernels::cpu::SiteUnion({.a_keys = a_keys.data(),
                           .num_a = num_sites(a),
                           .b_keys = b_keys.data(),
                           .num_b = num_sites(b),
                           .out_keys = united.data(),
                           .num_out = &num_out});
  united.resize(static_cast<size_t>(num_out));
  return absl::OkStatus();
}

absl::Status BatchGeometry::FilterLevel(int level, int parent, kernels::SiteFilterParams filter) {
  kernels::ScratchVector<uint64_t>& part = Level(level);
  kernels::Renew(part, keys(parent).size());
  int64_t num_out = 0;
  filter.dimension = dimension_;
  filter.in_keys = keys(parent).data();
  filter.num_in = num_sites(parent);
  filter.out_keys = part.data();
  filter.num_out = &num_out;
  kernels::cpu::SiteFilter(filter);
  part.resize(static_cast<size_t>(num_out));
  return absl::OkStatus();
}

absl::Status BatchGeometry::MakeSampleBegins(absl::Span<const int> levels) {
  const kernels::CoordinateKey key(dimension_);
  for (const int level : levels) {
    const kernels::ScratchVector<uint64_t>& level_keys = keys(level);
    if (sample_begins_.size() <= static_cast<size_t>(level)) sample_begins_.resize(static_cast<size_t>(level) + 1);
    std::vector<int64_t>& begins = sample_begins_[static_cast<size_t>(level)];
    begins.assign(1, 0);
    for (int32_t sample = 1; sample < num_samples_; ++sample) {
      const auto first =
          std::lower_bound(level_keys.begin() + begins.back(), level_keys.end(), key.SampleFloor(sample));
      begins.push_back(first - level_keys.begin());
    }
    begins.push_back(num_sites(level));
  }
  return absl::OkStatus();
}

absl::Status BatchGeometry::MakeOrders(absl::Span<const OrderRequest> orders) {
  const auto sites = [this](int level) {
    return kernels::LevelSites{.keys = keys(level).data(), .num_sites = num_sites(level)};
  };
  for (const OrderRequest& request : orders) {
    const SiteOrderSpec& spec = request.spec;
    const auto index = static_cast<size_t>(request.index);
    while (orders_.size() <= index) {
      orders_.emplace_back(memory_);
      spread_groups_.emplace_back(memory_);
      num_spread_groups_.push_back(0);
    }
    kernels::ScratchVector<int32_t>& made = orders_[index];
    kernels::Renew(made, keys(spec.level).size());
    kernels::Renew(spread_groups_[index], spec.spread_size > 0 ? made.size() : 0);
    kernels::SiteOrder order{.curve = spec.curve,
                             .sites = sites(spec.level),
                             .halvings = spec.halvings,
                             .windows = spec.windows,
                             .spread_size = spec.spread_size,
                             .spread_groups = spread_groups_[index].data(),
                             .num_spread_groups = &num_spread_groups_[index]};
    if (spec.depth_level >= 0) order.depth_sites = sites(spec.depth_level);
    kernels::cpu::SiteOrders({&order, 1}, num_samples_, made.data(), *pool_, memory_);
  }
  return absl::OkStatus();
}

SpreadGroups BatchGeometry::spread_groups(int order) const {
  const auto index = static_cast<size_t>(order);
  return {.groups = spread_groups_[index].data(),
          .count = &num_spread_groups_[index],
          .max_count = num_spread_groups_[index]};
}

absl::Status BatchGeometry::MakeRulebook(int index, const RulebookRequest& request) {
  const kernels::ScratchVector<uint64_t>& in_keys = keys(request.in_level);
  const kernels::ScratchVector<uint64_t>& out_keys = keys(request.out_level);
  const bool is_merged = request.search == kernels::MapSearch::kMerge;
  if (!is_merged) {
    const kernels::MapSearch taken = table_.Build({.dimension = dimension_,
                                                   .search = request.search,
                                                   .max_grid_bytes = request.max_grid_bytes,
                                                   .keys = out_keys.data(),
                                                   .num_keys = static_cast<int64_t>(out_keys.size())},
                                                  *pool_);
    if (taken != request.search) ++num_grid_fallbacks_;
    int64_t& most_bytes = taken == kernels::MapSearch::kGrid ? most_grid_bytes_ : most_hash_bytes_;
    most_bytes = std::max(most_bytes, table_.needed_bytes());
  }
  kernels::cpu::SearchRulebook({.geometry = request.geometry,
                                .in_keys = in_keys.data(),
                                .num_in = static_cast<int64_t>(in_keys.size()),
                                .out_keys = out_keys.data(),
                                .num_out = static_cast<int64_t>(out_keys.size()),
                                .table = is_merged ? nullptr : &table_},
                               *pool_, RulebookAt(index));
  return absl::OkStatus();
}

absl::Status BatchGeometry::SwapRulebook(int index, int of) {
  kernels::Rulebook& swapped = RulebookAt(index);
  kernels::cpu::SwapRulebook(rulebook(of), *pool_, swapped);
  return absl::OkStatus();
}

int64_t BatchGeometry::needed_bytes() const {
  int64_t bytes = BytesOf(point_to_voxel) + BytesOf(sorted_points) + BytesOf(voxel_begin) + BytesOf(point_mask_) +
                  static_cast<int64_t>(most_workspace_bytes_) + most_grid_bytes_ + most_hash_bytes_;
  for (const kernels::ScratchVector<uint64_t>& keys : levels_) bytes += BytesOf(keys);
  for (const kernels::Rulebook& rulebook : rulebooks_) bytes += rulebook.needed_bytes();
  for (const kernels::ScratchVector<int32_t>& order : orders_) bytes += BytesOf(order);
  for (const kernels::ScratchVector<kernels::SpreadGroup>& groups : spread_groups_) bytes += BytesOf(groups);
  return bytes;
}

}  // namespace voxserve
