// What convolutions and pools read: rulebooks between levels, found by hash or grid, in the forms that are asked for.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "engine/base/error_reason.h"
#include "engine/base/status_macros.h"
#include "engine/geometry/device_geometry.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/pair_tables.h"
#include "kernels/conv/swap_neighbours.h"
#include "kernels/coordinates/neighbour_search.h"

namespace voxserve {
namespace {

constexpr int64_t kCellBytes = sizeof(int32_t);

}  // namespace

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

kernels::NeighboursView DeviceGeometry::neighbours(int index) const {
  const DeviceRulebook* rulebook = &rulebooks_[static_cast<size_t>(index)];
  const bool is_swapped = rulebook->swap_of >= 0;
  if (is_swapped) rulebook = &rulebooks_[static_cast<size_t>(rulebook->swap_of)];
  kernels::NeighboursView view{.num_offsets = rulebook->num_offsets,
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
