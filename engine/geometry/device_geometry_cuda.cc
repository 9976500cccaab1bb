#include <cuda_runtime_api.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/geometry/device_geometry.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/morton_key.h"
#include "kernels/neighbour_search.h"
#include "kernels/pair_tables.h"
#include "kernels/sample_begins.h"
#include "kernels/swap_neighbours.h"
#include "kernels/voxel_limit.h"

namespace voxserve {
namespace {

constexpr int64_t kCellBytes = sizeof(int32_t);

// Rows are numbered with 31 bits.
absl::Status CheckRows(int64_t rows, const char* what) {
  if (rows <= std::numeric_limits<int32_t>::max()) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(absl::StrCat("a batch of up to ", rows, " ", what, "; the limit is ",
                                                              std::numeric_limits<int32_t>::max())),
                    error_reason::kOutOfMemory);
}

template <typename T>
absl::Status CopyToDevice(T* to, const T* from, size_t count, StreamView stream) {
  if (count == 0) return absl::OkStatus();
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, stream.get()));
  return absl::OkStatus();
}

// [K, num_rows] the other row of each pair, or -1.
std::vector<int32_t> NeighbourTable(const kernels::RulebookView& rulebook, const int32_t* rows, int64_t num_rows,
                                    const int32_t* others) {
  std::vector<int32_t> table(static_cast<size_t>(rulebook.num_offsets * num_rows), -1);
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    for (int64_t pair = rulebook.offset_begin[k]; pair < rulebook.offset_begin[k + 1]; ++pair) {
      table[static_cast<size_t>(k * num_rows + rows[pair])] = others[pair];
    }
  }
  return table;
}

}  // namespace

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

absl::Status DeviceGeometry::TakeTables(int index, int in_level, int out_level, int64_t in_capacity,
                                        int64_t out_capacity, const kernels::ConvGeometry& geometry,
                                        const RulebookForms& forms) {
  DeviceRulebook& rulebook = rulebooks_[static_cast<size_t>(index)];
  rulebook = {.num_offsets = geometry.NumOffsets(),
              .forms = forms,
              .in_capacity = in_capacity,
              .out_capacity = out_capacity,
              .offset_begin = sizes_.offset_begin + offsets_before_[static_cast<size_t>(index)],
              .in_level = in_level,
              .out_level = out_level,
              .has_identity = in_level == out_level && geometry.IsSymmetric()};
  DeviceArena& arena = context_->batch;
  const int64_t num_in = rulebook.num_offsets * in_capacity, num_out = rulebook.num_offsets * out_capacity;
  if (forms.pairs) {
    ASSIGN_OR_RETURN(rulebook.in_pairs, arena.TakeArray<int32_t>(num_in));
    ASSIGN_OR_RETURN(rulebook.out_pairs, arena.TakeArray<int32_t>(num_out));
    const int64_t mask_words = kernels::MaskWords(rulebook.num_offsets);
    ASSIGN_OR_RETURN(rulebook.in_masks, arena.TakeArray<uint32_t>(mask_words * in_capacity));
    ASSIGN_OR_RETURN(rulebook.out_masks, arena.TakeArray<uint32_t>(mask_words * out_capacity));
  }
  rulebook.neighbours = rulebook.out_pairs;
  if (forms.neighbours || !forms.pairs) {
    ASSIGN_OR_RETURN(rulebook.neighbours, arena.TakeArray<int32_t>(num_out));
  }
  if (forms.swapped_neighbours) {
    ASSIGN_OR_RETURN(rulebook.swapped_neighbours, arena.TakeArray<int32_t>(num_in));
  }
  return absl::OkStatus();
}

absl::Status DeviceGeometry::AddRulebook(int index, int in_level, int out_level, const kernels::ConvGeometry& geometry,
                                         const RulebookForms& forms, kernels::MapSearch search,
                                         int64_t max_grid_bytes) {
  RETURN_IF_ERROR(TakeTables(index, in_level, out_level, levels_[static_cast<size_t>(in_level)].capacity,
                             levels_[static_cast<size_t>(out_level)].capacity, geometry, forms));
  searches_.push_back({.index = index, .geometry = geometry, .max_grid_bytes = max_grid_bytes});
  Search& added = searches_.back();
  // Sorted lists are walked side by side on CPUs alone. Consecutive rows need neither.
  const bool is_grid = search == kernels::MapSearch::kGrid && SearchParams(added).first_in_rows == nullptr;
  added.strategy = is_grid ? kernels::MapSearch::kGrid : kernels::MapSearch::kHash;
  return absl::OkStatus();
}

absl::Status DeviceGeometry::MakeMaps() {
  RETURN_IF_ERROR(MakeLevels());
  RETURN_IF_ERROR(SearchByHash());
  RETURN_IF_ERROR(SearchByGrid());
  RETURN_IF_ERROR(SwapNeighbours());  // before pair tables take their memory
  RETURN_IF_ERROR(MakePairTables());
  added_levels_.clear();
  searches_.clear();
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

kernels::NeighbourSearchParams DeviceGeometry::SearchParams(const Search& search) const {
  const DeviceRulebook& rulebook = rulebooks_[static_cast<size_t>(search.index)];
  const Level& in = levels_[static_cast<size_t>(rulebook.in_level)];
  const Level& out = levels_[static_cast<size_t>(rulebook.out_level)];
  kernels::NeighbourSearchParams params{.geometry = search.geometry,
                                        .table = {},
                                        .dimension = shape_.dimension,
                                        .out_keys = out.keys,
                                        .out_capacity = out.capacity,
                                        .num_out = out.num_sites,
                                        .same_sites = rulebook.in_level == rulebook.out_level,
                                        .neighbours = rulebook.neighbours};
  const auto* const rule = std::get_if<kernels::OutputCoordinatesParams>(&out.made_by);
  if (rule != nullptr && out.parent == rulebook.in_level && kernels::CellsAreBlocks(search.geometry) &&
      search.geometry.stride == rule->geometry.stride) {
    params.first_in_rows = rule->first_in_rows;
    params.in_keys = in.keys;
    params.in_capacity = in.capacity;
    params.num_in = in.num_sites;
  }
  return params;
}

absl::StatusOr<std::vector<kernels::cuda::CoordinateTable>> DeviceGeometry::MakeTables(absl::Span<const int> levels,
                                                                                       kernels::MapSearch strategy) {
  const bool is_grid = strategy == kernels::MapSearch::kGrid;
  std::vector<kernels::cuda::CoordinateTableBuildParams> builds;
  std::vector<size_t> memory_begin;
  size_t memory_bytes = 0;
  for (const int index : levels) {
    const Level& level = levels_[static_cast<size_t>(index)];
    builds.push_back({.dimension = shape_.dimension,
                      .search = strategy,
                      .num_samples = shape_.num_samples,
                      .keys = level.keys,
                      .capacity = level.capacity,
                      .num_keys = level.num_sites,
                      .grid_cells = is_grid ? reinterpret_cast<int32_t*>(context_->grid_cells.data()) : nullptr,
                      .max_grid_cells = is_grid ? context_->grid_cells.bytes() / kCellBytes : 0});
    memory_begin.push_back(memory_bytes);
    memory_bytes += kernels::cuda::CoordinateTableBytes(builds.back());
  }
  ASSIGN_OR_RETURN(void* const memory, Scratch(memory_bytes));
  for (size_t i = 0; i < builds.size(); ++i) builds[i].memory = static_cast<char*>(memory) + memory_begin[i];
  std::vector<kernels::cuda::CoordinateTable> tables(builds.size());
  RETURN_IF_CUDA_ERROR(kernels::cuda::BuildCoordinateTables(builds, tables, stream().get()));
  return tables;
}

absl::Status DeviceGeometry::SearchByHash() {
  std::vector<kernels::NeighbourSearchParams> params;
  std::vector<int> table_levels;
  std::vector<size_t> table_of;  // by search; what reads no table has the last one
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  for (const Search& search : searches_) {
    if (search.strategy != kernels::MapSearch::kHash) continue;
    params.push_back(SearchParams(search));
    table_of.push_back(kNone);
    if (params.back().first_in_rows != nullptr) continue;
    const int in_level = rulebooks_[static_cast<size_t>(search.index)].in_level;
    const auto found = std::find(table_levels.begin(), table_levels.end(), in_level);
    table_of.back() = static_cast<size_t>(found - table_levels.begin());
    if (found == table_levels.end()) table_levels.push_back(in_level);
  }
  ASSIGN_OR_RETURN(const std::vector<kernels::cuda::CoordinateTable> tables,
                   MakeTables(table_levels, kernels::MapSearch::kHash));
  for (size_t i = 0; i < params.size(); ++i) {
    if (table_of[i] != kNone) params[i].table = tables[table_of[i]];
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::SearchNeighbours(params, stream().get()));
  return absl::OkStatus();
}

absl::Status DeviceGeometry::ReserveGrid(int64_t max_grid_bytes) {
  const int64_t bytes = max_grid_bytes / kCellBytes * kCellBytes;
  if (context_->grid_cells.bytes() == bytes) return absl::OkStatus();
  absl::StatusOr<DeviceBuffer> cells = DeviceBuffer::Create(*context_->pool, bytes, stream());
  // Without room for it, the hash table serves in its place.
  if (ReasonOf(cells.status()) == error_reason::kOutOfMemory) return absl::OkStatus();
  ASSIGN_OR_RETURN(context_->grid_cells, std::move(cells));
  RETURN_IF_CUDA_ERROR(cudaMemsetAsync(context_->grid_cells.data(), 0xFF,
                                       static_cast<size_t>(context_->grid_cells.bytes()), stream().get()));
  return absl::OkStatus();
}

// There is one grid for all levels: each has it in its turn.
absl::Status DeviceGeometry::SearchByGrid() {
  std::vector<kernels::NeighbourSearchParams> params;
  for (int index = 0; index < shape_.num_levels; ++index) {
    params.clear();
    int64_t max_grid_bytes = 0;
    for (const Search& search : searches_) {
      if (search.strategy != kernels::MapSearch::kGrid) continue;
      if (rulebooks_[static_cast<size_t>(search.index)].in_level != index) continue;
      params.push_back(SearchParams(search));
      max_grid_bytes = search.max_grid_bytes;
    }
    if (params.empty()) continue;
    RETURN_IF_ERROR(ReserveGrid(max_grid_bytes));
    context_->is_grid_clean = false;
    ASSIGN_OR_RETURN(const std::vector<kernels::cuda::CoordinateTable> tables,
                     MakeTables({index}, kernels::MapSearch::kGrid));
    const kernels::cuda::CoordinateTable& table = tables.front();
    for (kernels::NeighbourSearchParams& search : params) search.table = table;
    RETURN_IF_CUDA_ERROR(kernels::cuda::SearchNeighbours(params, stream().get()));
    if (std::find(grid_levels_.begin(), grid_levels_.end(), index) == grid_levels_.end()) grid_levels_.push_back(index);
    RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(sizes_.uses_grid + index, table.uses_grid, sizeof(int32_t),
                                         cudaMemcpyDeviceToDevice, stream().get()));
    const Level& level = levels_[static_cast<size_t>(index)];
    RETURN_IF_CUDA_ERROR(kernels::cuda::ResetGrid(table, level.keys, level.capacity, level.num_sites, stream().get()));
    context_->is_grid_clean = true;
  }
  return absl::OkStatus();
}

absl::Status DeviceGeometry::MakePairTables() {
  std::vector<kernels::PairTablesParams> params;
  std::vector<size_t> workspace_begin;
  size_t workspace_bytes = 0;
  for (const Search& search : searches_) {
    const DeviceRulebook& rulebook = rulebooks_[static_cast<size_t>(search.index)];
    if (!rulebook.forms.pairs) continue;
    params.push_back({.num_offsets = rulebook.num_offsets,
                      .neighbours = rulebook.neighbours,
                      .out_capacity = rulebook.out_capacity,
                      .num_out = levels_[static_cast<size_t>(rulebook.out_level)].num_sites,
                      .in_capacity = rulebook.in_capacity,
                      .num_in = levels_[static_cast<size_t>(rulebook.in_level)].num_sites,
                      .is_symmetric = rulebook.has_identity,
                      .in_pairs = rulebook.in_pairs,
                      .out_pairs = rulebook.out_pairs,
                      .in_masks = rulebook.in_masks,
                      .out_masks = rulebook.out_masks,
                      .offset_begin = rulebook.offset_begin});
    workspace_begin.push_back(workspace_bytes);
    workspace_bytes += kernels::cuda::PairTablesWorkspaceBytes(params.back());
  }
  if (params.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(void* const workspace, Scratch(workspace_bytes));
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].workspace = static_cast<char*>(workspace) + workspace_begin[i];
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::PairTables(params, stream().get()));
  return absl::OkStatus();
}

absl::Status DeviceGeometry::SwapNeighbours() {
  std::vector<kernels::SwapNeighboursParams> params;
  for (const Search& search : searches_) {
    const DeviceRulebook& rulebook = rulebooks_[static_cast<size_t>(search.index)];
    if (!rulebook.forms.swapped_neighbours) continue;
    params.push_back({.num_offsets = rulebook.num_offsets,
                      .neighbours = rulebook.neighbours,
                      .out_capacity = rulebook.out_capacity,
                      .num_out = levels_[static_cast<size_t>(rulebook.out_level)].num_sites,
                      .in_capacity = rulebook.in_capacity,
                      .swapped = rulebook.swapped_neighbours});
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::SwapNeighbours(params, stream().get()));
  return absl::OkStatus();
}

void DeviceGeometry::SwapRulebook(int index, int of) { rulebooks_[static_cast<size_t>(index)].swap_of = of; }

void DeviceGeometry::GoOn() {
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

absl::Status DeviceGeometry::UploadVoxels(const BatchGeometry& made) {
  DeviceArena& arena = context_->batch;
  sample_begin = made.sample_begin;
  num_invalid = made.num_invalid;
  num_out_of_range = made.num_out_of_range;
  num_dropped_points = made.num_dropped_points;
  num_dropped_voxels = made.num_dropped_voxels;
  num_beyond_limits = made.num_beyond_limits;
  num_valid = made.num_valid;
  selected_points = made.selected_points;
  num_sites_.clear();
  for (int level = 0; level < shape_.num_levels; ++level) num_sites_.push_back(made.num_sites(level));
  host_sizes_.assign(static_cast<size_t>(sizes_.count), 0);
  const auto num_points = static_cast<int64_t>(made.point_to_voxel.size());
  ASSIGN_OR_RETURN(point_to_voxel_, arena.TakeArray<int32_t>(num_points));
  ASSIGN_OR_RETURN(sorted_points_, arena.TakeArray<int32_t>(num_points));
  ASSIGN_OR_RETURN(voxel_begin_, arena.TakeArray<int64_t>(num_sites_[0] + 1));
  RETURN_IF_ERROR(CopyToDevice(point_to_voxel_, made.point_to_voxel.data(), made.point_to_voxel.size(), stream()));
  RETURN_IF_ERROR(CopyToDevice(sorted_points_, made.sorted_points.data(), made.sorted_points.size(), stream()));
  RETURN_IF_ERROR(
      CopyToDevice(voxel_begin_, made.voxel_begin.data(), static_cast<size_t>(num_sites_[0] + 1), stream()));
  return stream().Synchronize();
}

absl::Status DeviceGeometry::UploadRulebook(int index, int in_level, int out_level,
                                            const kernels::ConvGeometry& geometry, const RulebookForms& forms,
                                            const kernels::RulebookView& made) {
  RETURN_IF_ERROR(TakeTables(index, in_level, out_level, made.num_in_rows, made.num_out_rows, geometry, forms));
  const DeviceRulebook& rulebook = rulebooks_[static_cast<size_t>(index)];
  RETURN_IF_ERROR(CheckRows(made.num_pairs(), "pairs"));
  const auto num_pairs = static_cast<size_t>(made.num_pairs());
  const auto num_begins = static_cast<size_t>(made.num_offsets) + 1;
  std::copy_n(made.offset_begin, num_begins,
              CutSizes(host_sizes_.data()).offset_begin + offsets_before_[static_cast<size_t>(index)]);
  RETURN_IF_ERROR(CopyToDevice(rulebook.offset_begin, made.offset_begin, num_begins, stream()));
  if (forms.pairs) {
    context_->features.Reset();
    ASSIGN_OR_RETURN(int32_t * in_rows, context_->features.TakeArray<int32_t>(made.num_pairs()));
    ASSIGN_OR_RETURN(int32_t * out_rows, context_->features.TakeArray<int32_t>(made.num_pairs()));
    RETURN_IF_ERROR(CopyToDevice(in_rows, made.in_rows, num_pairs, stream()));
    RETURN_IF_ERROR(CopyToDevice(out_rows, made.out_rows, num_pairs, stream()));
    RETURN_IF_CUDA_ERROR(kernels::cuda::PairTablesFromLists({.num_offsets = made.num_offsets,
                                                             .num_pairs = made.num_pairs(),
                                                             .in_rows = in_rows,
                                                             .out_rows = out_rows,
                                                             .offset_begin = rulebook.offset_begin,
                                                             .in_capacity = made.num_in_rows,
                                                             .out_capacity = made.num_out_rows,
                                                             .in_pairs = rulebook.in_pairs,
                                                             .out_pairs = rulebook.out_pairs,
                                                             .in_masks = rulebook.in_masks,
                                                             .out_masks = rulebook.out_masks},
                                                            stream().get()));
  }
  std::vector<int32_t> neighbours, swapped;  // live until the stream has been waited for
  if (forms.neighbours) {
    neighbours = NeighbourTable(made, made.out_rows, made.num_out_rows, made.in_rows);
    RETURN_IF_ERROR(CopyToDevice(rulebook.neighbours, neighbours.data(), neighbours.size(), stream()));
  }
  if (forms.swapped_neighbours) {
    swapped = NeighbourTable(made, made.in_rows, made.num_in_rows, made.out_rows);
    RETURN_IF_ERROR(CopyToDevice(rulebook.swapped_neighbours, swapped.data(), swapped.size(), stream()));
  }
  return stream().Synchronize();
}

absl::Status DeviceGeometry::UploadSampleBegin(int index, const BatchGeometry& made) {
  Level& level = levels_[static_cast<size_t>(index)];
  const auto count = static_cast<size_t>(shape_.num_samples) + 1;
  ASSIGN_OR_RETURN(level.sample_begin, context_->batch.TakeArray<int64_t>(static_cast<int64_t>(count)));
  RETURN_IF_ERROR(CopyToDevice(level.sample_begin, made.level_sample_begin(index), count, stream()));
  return stream().Synchronize();
}

absl::Status DeviceGeometry::UploadKeys(int index, const BatchGeometry& made) {
  const kernels::CoordinateKey layout(shape_.dimension);
  std::vector<uint64_t> keys = made.keys(index);
  std::transform(keys.begin(), keys.end(), keys.begin(),
                 [&](uint64_t key) { return kernels::ToMortonKey(layout, key); });
  Level& level = levels_[static_cast<size_t>(index)];
  level.capacity = static_cast<int64_t>(keys.size());
  ASSIGN_OR_RETURN(level.keys, context_->batch.TakeArray<uint64_t>(level.capacity));
  RETURN_IF_ERROR(CopyToDevice(level.keys, keys.data(), keys.size(), stream()));
  return stream().Synchronize();
}

NeighboursView DeviceGeometry::neighbours(int index) const {
  const DeviceRulebook* rulebook = &rulebooks_[static_cast<size_t>(index)];
  const bool is_swapped = rulebook->swap_of >= 0;
  if (is_swapped) rulebook = &rulebooks_[static_cast<size_t>(rulebook->swap_of)];
  NeighboursView view{.num_offsets = rulebook->num_offsets,
                      .rows = rulebook->neighbours,
                      .pitch = rulebook->out_capacity,
                      .num_in_rows = num_sites_[static_cast<size_t>(rulebook->in_level)],
                      .num_out_rows = num_sites_[static_cast<size_t>(rulebook->out_level)],
                      .identity_offset = rulebook->has_identity ? rulebook->num_offsets / 2 : -1};
  if (is_swapped) {
    view.rows = rulebook->swapped_neighbours;
    view.pitch = rulebook->in_capacity;
    std::swap(view.num_in_rows, view.num_out_rows);
  }
  return view;
}

kernels::PairTablesView DeviceGeometry::rulebook(int index) const {
  const DeviceRulebook* rulebook = &rulebooks_[static_cast<size_t>(index)];
  const bool is_swapped = rulebook->swap_of >= 0;
  if (is_swapped) {
    index = rulebook->swap_of;
    rulebook = &rulebooks_[static_cast<size_t>(index)];
  }
  // Where the offsets begin in the copy is where they begin on the device.
  const int64_t* offset_begin = host_sizes_.data() + (rulebook->offset_begin - sizes_.sample_begin);
  kernels::PairTablesView view{.num_offsets = rulebook->num_offsets,
                               .in_pairs = rulebook->in_pairs,
                               .in_capacity = rulebook->in_capacity,
                               .out_pairs = rulebook->out_pairs,
                               .out_capacity = rulebook->out_capacity,
                               .in_masks = rulebook->in_masks,
                               .out_masks = rulebook->out_masks,
                               .offset_begin = offset_begin,
                               .num_in_rows = num_sites_[static_cast<size_t>(rulebook->in_level)],
                               .num_out_rows = num_sites_[static_cast<size_t>(rulebook->out_level)],
                               .identity_offset = rulebook->has_identity ? rulebook->num_offsets / 2 : -1};
  if (is_swapped) {
    std::swap(view.in_pairs, view.out_pairs);
    std::swap(view.in_capacity, view.out_capacity);
    std::swap(view.in_masks, view.out_masks);
    std::swap(view.num_in_rows, view.num_out_rows);
  }
  return view;
}

}  // namespace voxserve
