#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/base/error_reason.h"
#include "engine/geometry/device_rulebooks.h"
#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/pair_tables.h"
#include "kernels/conv/swap_neighbours.h"

namespace voxserve {
namespace {

// Returns [K, num_rows] the other row of each pair, or -1 where a row has no pair at that offset.
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

void DeviceRulebooks::Begin(const DeviceSizes& sizes, const DeviceLevels& levels, GeometryMemory& memory) {
  sizes_ = &sizes;
  levels_ = &levels;
  memory_ = &memory;
  rulebooks_.assign(static_cast<size_t>(sizes.num_rulebooks()), Rulebook{});
  searches_.clear();
}

absl::Status DeviceRulebooks::TakeTables(int index, const RulebookRequest& request, int64_t in_capacity,
                                         int64_t out_capacity, bool has_sizes) {
  Rulebook& rulebook = At(index);
  rulebook = {.num_offsets = request.geometry.NumOffsets(),
              .forms = request.forms,
              .in_capacity = in_capacity,
              .out_capacity = out_capacity,
              .in_level = request.in_level,
              .out_level = request.out_level,
              .has_identity = request.in_level == request.out_level && request.geometry.IsSymmetric()};
  const int64_t num_in = rulebook.num_offsets * in_capacity, num_out = rulebook.num_offsets * out_capacity;
  if (request.forms.pairs) {
    ASSIGN_OR_RETURN(rulebook.in_pairs, TakeTable<int32_t>(num_in, has_sizes));
    ASSIGN_OR_RETURN(rulebook.out_pairs, TakeTable<int32_t>(num_out, has_sizes));
    const int64_t mask_words = kernels::MaskWords(rulebook.num_offsets);
    ASSIGN_OR_RETURN(rulebook.in_masks, TakeTable<uint32_t>(mask_words * in_capacity, has_sizes));
    ASSIGN_OR_RETURN(rulebook.out_masks, TakeTable<uint32_t>(mask_words * out_capacity, has_sizes));
  }
  if (request.forms.neighbours) {
    ASSIGN_OR_RETURN(rulebook.neighbours, TakeTable<int32_t>(num_out, has_sizes));
  }
  if (request.forms.swapped_neighbours) {
    ASSIGN_OR_RETURN(rulebook.swapped_neighbours, TakeTable<int32_t>(num_in, has_sizes));
  }
  return TakeTiles(request, has_sizes, rulebook);
}

absl::Status DeviceRulebooks::TakeTiles(const RulebookRequest& request, bool has_sizes, Rulebook& rulebook) {
  const auto take = [&](int64_t capacity, int level, kernels::TilesParams& tiles) -> absl::Status {
    tiles = {.num_offsets = rulebook.num_offsets,
             .pitch = capacity,
             .out_capacity = capacity,
             .num_out = levels_->at(level).num_sites};
    const int64_t places = kernels::NumTilePlaces(capacity);
    const int64_t num_tiles = places / kernels::kMaskTileRows;
    ASSIGN_OR_RETURN(tiles.out_rows, TakeTable<int32_t>(places, has_sizes));
    const int64_t mask_words = num_tiles * kernels::MaskWords(rulebook.num_offsets);
    ASSIGN_OR_RETURN(tiles.masks, TakeTable<uint32_t>(mask_words, has_sizes));
    ASSIGN_OR_RETURN(tiles.in_rows, TakeTable<int32_t>(places * rulebook.num_offsets, has_sizes));
    ASSIGN_OR_RETURN(tiles.counters, TakeTable<int32_t>(kernels::NumTileCounters(capacity), has_sizes));
    ASSIGN_OR_RETURN(tiles.by_weight, TakeTable<kernels::WeighedTile>(kernels::NumTilesByWeight(capacity), has_sizes));
    return absl::OkStatus();
  };
  if (request.forms.tiles) RETURN_IF_ERROR(take(rulebook.out_capacity, rulebook.out_level, rulebook.tiles));
  if (request.forms.swapped_tiles) {
    RETURN_IF_ERROR(take(rulebook.in_capacity, rulebook.in_level, rulebook.swapped_tiles));
  }
  return absl::OkStatus();
}

absl::Status DeviceRulebooks::TakeTemporaryTables(Rulebook& rulebook) {
  if (rulebook.lists_inputs) {
    ASSIGN_OR_RETURN(rulebook.row_inputs, memory_->TakeSized<int32_t>(kernels::RowInputsPitch(rulebook.num_offsets) *
                                                                      rulebook.out_capacity));
    return absl::OkStatus();
  }
  if (rulebook.swaps_blocks) {
    ASSIGN_OR_RETURN(rulebook.swapped_row_inputs, memory_->TakeSized<int32_t>(rulebook.in_capacity));
    if (!rulebook.forms.tiles) return absl::OkStatus();
  }
  // Pairs are made last, so until then their memory can hold the neighbours.
  if (rulebook.neighbours == nullptr) rulebook.neighbours = rulebook.out_pairs;
  if (rulebook.neighbours == nullptr) {
    ASSIGN_OR_RETURN(rulebook.neighbours, memory_->TakeSized<int32_t>(rulebook.num_offsets * rulebook.out_capacity));
  }
  if (rulebook.forms.swapped_tiles && rulebook.swapped_neighbours == nullptr && !rulebook.swaps_blocks) {
    ASSIGN_OR_RETURN(rulebook.swapped_neighbours,
                     memory_->TakeSized<int32_t>(rulebook.num_offsets * rulebook.in_capacity));
  }
  return absl::OkStatus();
}

absl::Status DeviceRulebooks::TakeRowMasks(Rulebook& rulebook) {
  if (rulebook.num_offsets > kernels::kSortBits) return absl::OkStatus();
  if (rulebook.forms.tiles) {
    ASSIGN_OR_RETURN(rulebook.row_masks, memory_->TakeSized<uint32_t>(rulebook.out_capacity));
  }
  if (rulebook.forms.swapped_tiles) {
    ASSIGN_OR_RETURN(rulebook.swapped_row_masks, memory_->TakeSized<uint32_t>(rulebook.in_capacity));
  }
  return absl::OkStatus();
}

void DeviceRulebooks::ForgetTemporaryTables(Rulebook& rulebook) {
  rulebook.row_masks = rulebook.swapped_row_masks = nullptr;
  rulebook.row_inputs = rulebook.swapped_row_inputs = nullptr;
  if (!rulebook.forms.neighbours) rulebook.neighbours = nullptr;
  if (!rulebook.forms.swapped_neighbours) rulebook.swapped_neighbours = nullptr;
}

void DeviceRulebooks::ListTiles(const RulebookRequest& request, const Rulebook& rulebook,
                                std::vector<kernels::TilesParams>& tiles) {
  if (!request.forms.tiles && !request.forms.swapped_tiles) return;
  const kernels::SortOrder order = kernels::OffsetsByDistance(request.geometry);
  const auto add = [&](kernels::TilesParams params, const int32_t* neighbours, const uint32_t* row_masks,
                       const int32_t* row_inputs, int64_t pitch) {
    params.neighbours = neighbours;
    params.row_masks = row_masks;
    params.row_inputs = row_inputs;
    params.row_inputs_pitch = pitch;
    params.order = order;
    params.keeps_order = !request.forms.sorts_rows;
    tiles.push_back(params);
  };
  if (request.forms.tiles) {
    add(rulebook.tiles, rulebook.neighbours, rulebook.row_masks, rulebook.row_inputs,
        kernels::RowInputsPitch(rulebook.num_offsets));
  }
  if (request.forms.swapped_tiles) {
    add(rulebook.swapped_tiles, rulebook.swapped_neighbours, rulebook.swapped_row_masks, rulebook.swapped_row_inputs,
        /*pitch=*/1);
  }
}

absl::Status DeviceRulebooks::MakeTiles(absl::Span<const kernels::TilesParams> params) {
  if (params.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(void* const workspace, memory_->TakeScratch(kernels::cuda::TilesWorkspaceBytes(params)));
  RETURN_IF_CUDA_ERROR(kernels::cuda::MakeTiles(params, workspace, memory_->stream().get()));
  return absl::OkStatus();
}

bool DeviceRulebooks::AsksForPairs() const {
  return std::any_of(searches_.begin(), searches_.end(), [](const Search& s) { return s.request.forms.pairs; });
}

absl::Status DeviceRulebooks::Make(bool has_sizes) {
  for (const Search& search : searches_) {
    const RulebookRequest& request = search.request;
    RETURN_IF_ERROR(TakeTables(search.index, request, levels_->at(request.in_level).capacity,
                               levels_->at(request.out_level).capacity, has_sizes));
  }
  const DeviceArena::Mark kept = memory_->sized_end();
  for (const Search& search : searches_) {
    Rulebook& rulebook = At(search.index);
    const RulebookForms& forms = rulebook.forms;
    const bool are_blocks = SearchParams(search).first_in_rows != nullptr;
    rulebook.lists_inputs = forms.tiles && !forms.pairs && !forms.neighbours && !forms.swapped_neighbours &&
                            !forms.swapped_tiles && rulebook.num_offsets <= kernels::kSortBits && !are_blocks;
    rulebook.swaps_blocks = forms.swapped_tiles && !forms.pairs && !forms.swapped_neighbours && are_blocks &&
                            rulebook.num_offsets <= kernels::kSortBits;
    RETURN_IF_ERROR(TakeTemporaryTables(rulebook));
    RETURN_IF_ERROR(TakeRowMasks(rulebook));
  }
  RETURN_IF_ERROR(MakeForms());
  for (const Search& search : searches_) ForgetTemporaryTables(At(search.index));
  memory_->ReturnTo(kept);
  searches_.clear();
  return absl::OkStatus();
}

absl::Status DeviceRulebooks::MakeForms() {
  RETURN_IF_ERROR(SearchNeighbours());
  RETURN_IF_ERROR(SwapNeighbours());
  std::vector<kernels::TilesParams> tiles;
  for (const Search& search : searches_) ListTiles(search.request, RulebookOf(search), tiles);
  RETURN_IF_ERROR(MakeTiles(tiles));
  return MakePairTables();  // the last, since they may overwrite the neighbours' memory
}

kernels::NeighbourSearchParams DeviceRulebooks::SearchParams(const Search& search) const {
  const Rulebook& rulebook = RulebookOf(search);
  const DeviceLevels::Level& in = levels_->at(rulebook.in_level);
  const DeviceLevels::Level& out = levels_->at(rulebook.out_level);
  const kernels::ConvGeometry& geometry = search.request.geometry;
  kernels::NeighbourSearchParams params{.geometry = geometry,
                                        .table = {},
                                        .dimension = sizes_->dimension(),
                                        .out_keys = out.keys,
                                        .out_capacity = out.capacity,
                                        .num_out = out.num_sites,
                                        .neighbours = rulebook.neighbours,
                                        .row_masks = rulebook.row_masks,
                                        .row_inputs = rulebook.row_inputs};
  const auto* const rule = std::get_if<kernels::OutputCoordinatesParams>(&out.made_by);
  if (rule != nullptr && out.parent == rulebook.in_level && kernels::CellsAreBlocks(geometry) &&
      geometry.stride == rule->geometry.stride) {
    params.first_in_rows = rule->first_in_rows;
    params.in_keys = in.keys;
    params.in_capacity = in.capacity;
    params.num_in = in.num_sites;
    if (rulebook.swapped_row_inputs != nullptr) {
      params.swapped_row_masks = rulebook.swapped_row_masks;
      params.swapped_row_inputs = rulebook.swapped_row_inputs;
    }
  }
  return params;
}

absl::StatusOr<std::vector<kernels::cuda::BrickTable>> DeviceRulebooks::MakeTables(absl::Span<const int> levels) {
  std::vector<kernels::cuda::BrickTableParams> builds;
  std::vector<size_t> memory_begin;
  size_t memory_bytes = 0;
  for (const int index : levels) {
    const DeviceLevels::Level& level = levels_->at(index);
    builds.push_back({.dimension = sizes_->dimension(),
                      .keys = level.keys,
                      .capacity = level.capacity,
                      .num_keys = level.num_sites});
    memory_begin.push_back(memory_bytes);
    memory_bytes += kernels::cuda::BrickTableBytes(builds.back());
  }
  ASSIGN_OR_RETURN(void* const memory, memory_->TakeScratch(memory_bytes));
  for (size_t i = 0; i < builds.size(); ++i) builds[i].memory = static_cast<char*>(memory) + memory_begin[i];
  std::vector<kernels::cuda::BrickTable> tables(builds.size());
  RETURN_IF_CUDA_ERROR(kernels::cuda::BuildBrickTables(builds, tables, memory_->stream().get()));
  return tables;
}

absl::Status DeviceRulebooks::SearchNeighbours() {
  std::vector<kernels::NeighbourSearchParams> params;
  std::vector<int> table_levels;
  std::vector<size_t> table_of;  // by search: an index into table_levels, or kNone where the search reads no table
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  for (const Search& search : searches_) {
    params.push_back(SearchParams(search));
    table_of.push_back(kNone);
    if (params.back().first_in_rows != nullptr) continue;
    const int in_level = RulebookOf(search).in_level;
    const auto found = std::find(table_levels.begin(), table_levels.end(), in_level);
    table_of.back() = static_cast<size_t>(found - table_levels.begin());
    if (found == table_levels.end()) table_levels.push_back(in_level);
  }
  ASSIGN_OR_RETURN(const std::vector<kernels::cuda::BrickTable> tables, MakeTables(table_levels));
  for (size_t i = 0; i < params.size(); ++i) {
    if (table_of[i] != kNone) params[i].table = tables[table_of[i]];
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::SearchNeighbours(params, memory_->stream().get()));
  return absl::OkStatus();
}

absl::Status DeviceRulebooks::MakePairTables() {
  std::vector<kernels::PairTablesParams> params;
  std::vector<size_t> workspace_begin;
  size_t workspace_bytes = 0;
  for (const Search& search : searches_) {
    const Rulebook& rulebook = RulebookOf(search);
    if (!rulebook.forms.pairs) continue;
    params.push_back({.num_offsets = rulebook.num_offsets,
                      .neighbours = rulebook.neighbours,
                      .out_capacity = rulebook.out_capacity,
                      .num_out = levels_->at(rulebook.out_level).num_sites,
                      .in_capacity = rulebook.in_capacity,
                      .num_in = levels_->at(rulebook.in_level).num_sites,
                      .is_symmetric = rulebook.has_identity,
                      .in_pairs = rulebook.in_pairs,
                      .out_pairs = rulebook.out_pairs,
                      .in_masks = rulebook.in_masks,
                      .out_masks = rulebook.out_masks,
                      .offset_begin = sizes_->offsets_on_device(search.index)});
    workspace_begin.push_back(workspace_bytes);
    workspace_bytes += kernels::cuda::PairTablesWorkspaceBytes(params.back());
  }
  if (params.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(void* const workspace, memory_->TakeScratch(workspace_bytes));
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].workspace = static_cast<char*>(workspace) + workspace_begin[i];
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::PairTables(params, memory_->stream().get()));
  return absl::OkStatus();
}

absl::Status DeviceRulebooks::SwapNeighbours() {
  std::vector<kernels::SwapNeighboursParams> params;
  for (const Search& search : searches_) {
    const Rulebook& rulebook = RulebookOf(search);
    if (rulebook.swapped_neighbours == nullptr) continue;
    params.push_back({.num_offsets = rulebook.num_offsets,
                      .neighbours = rulebook.neighbours,
                      .out_capacity = rulebook.out_capacity,
                      .num_out = levels_->at(rulebook.out_level).num_sites,
                      .in_capacity = rulebook.in_capacity,
                      .swapped = rulebook.swapped_neighbours,
                      .row_masks = rulebook.swapped_row_masks});
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::SwapNeighbours(params, memory_->stream().get()));
  return absl::OkStatus();
}

absl::Status DeviceRulebooks::Upload(int index, const RulebookRequest& request, const kernels::RulebookView& made) {
  // Without has_sizes the tables lie in the batch's arena, as everything that is uploaded.
  RETURN_IF_ERROR(TakeTables(index, request, made.num_in_rows, made.num_out_rows, /*has_sizes=*/false));
  Rulebook& rulebook = At(index);
  const DeviceArena::Mark kept = memory_->sized_end();
  RETURN_IF_ERROR(TakeTemporaryTables(rulebook));
  RETURN_IF_ERROR(CheckNumRows(made.num_pairs(), "pairs"));
  const auto list_bytes = static_cast<size_t>(made.num_pairs()) * sizeof(int32_t);
  const auto num_begins = static_cast<size_t>(made.num_offsets) + 1;
  std::copy_n(made.offset_begin, num_begins, sizes_->offsets_on_host(index));
  RETURN_IF_ERROR(memory_->Upload(sizes_->offsets_on_device(index), made.offset_begin, num_begins * sizeof(int64_t)));
  std::vector<int32_t> neighbours, swapped;  // live until the stream has been waited for
  if (request.forms.neighbours || request.forms.tiles) {
    neighbours = NeighbourTable(made, made.out_rows, made.num_out_rows, made.in_rows);
    RETURN_IF_ERROR(memory_->Upload(rulebook.neighbours, neighbours.data(), neighbours.size() * sizeof(int32_t)));
  }
  if (rulebook.swapped_neighbours != nullptr) {
    swapped = NeighbourTable(made, made.in_rows, made.num_in_rows, made.out_rows);
    RETURN_IF_ERROR(memory_->Upload(rulebook.swapped_neighbours, swapped.data(), swapped.size() * sizeof(int32_t)));
  }
  // The CPU knows exact sizes: all rows of the capacity exist, so no count on the device is read.
  rulebook.tiles.num_out = rulebook.swapped_tiles.num_out = nullptr;
  std::vector<kernels::TilesParams> tiles;
  ListTiles(request, rulebook, tiles);
  RETURN_IF_ERROR(MakeTiles(tiles));
  if (request.forms.pairs) {  // the last, since they may overwrite the neighbours' memory
    const auto second_list = static_cast<size_t>(AlignedBytes(static_cast<int64_t>(list_bytes)));
    ASSIGN_OR_RETURN(void* const lists, memory_->TakeScratch(2 * second_list));
    auto* const in_rows = static_cast<int32_t*>(lists);
    auto* const out_rows = in_rows + second_list / sizeof(int32_t);
    RETURN_IF_ERROR(memory_->Upload(in_rows, made.in_rows, list_bytes));
    RETURN_IF_ERROR(memory_->Upload(out_rows, made.out_rows, list_bytes));
    RETURN_IF_CUDA_ERROR(kernels::cuda::PairTablesFromLists({.num_offsets = made.num_offsets,
                                                             .num_pairs = made.num_pairs(),
                                                             .in_rows = in_rows,
                                                             .out_rows = out_rows,
                                                             .offset_begin = sizes_->offsets_on_device(index),
                                                             .in_capacity = made.num_in_rows,
                                                             .out_capacity = made.num_out_rows,
                                                             .in_pairs = rulebook.in_pairs,
                                                             .out_pairs = rulebook.out_pairs,
                                                             .in_masks = rulebook.in_masks,
                                                             .out_masks = rulebook.out_masks},
                                                            memory_->stream().get()));
  }
  ForgetTemporaryTables(rulebook);
  memory_->ReturnTo(kept);
  return memory_->stream().Synchronize();
}

absl::Status DeviceRulebooks::CheckNumPairs() const {
  for (int i = 0; i < sizes_->num_rulebooks(); ++i) {
    if (at(i).swap_of < 0) RETURN_IF_ERROR(CheckNumRows(sizes_->num_pairs(i), "pairs"));
  }
  return absl::OkStatus();
}

kernels::NeighboursView DeviceRulebooks::neighbours(int index) const {
  const Rulebook& rulebook = at(Searched(index));
  kernels::NeighboursView view{.num_offsets = rulebook.num_offsets,
                               .rows = rulebook.neighbours,
                               .pitch = rulebook.out_capacity,
                               .num_in_rows = levels_->num_sites(rulebook.in_level),
                               .num_out_rows = levels_->num_sites(rulebook.out_level),
                               .identity_offset = rulebook.has_identity ? rulebook.num_offsets / 2 : -1};
  if (at(index).swap_of >= 0) {
    view.rows = rulebook.swapped_neighbours;
    view.pitch = rulebook.in_capacity;
    std::swap(view.num_in_rows, view.num_out_rows);
  }
  return view;
}

kernels::TilesView DeviceRulebooks::tiles(int index) const {
  const Rulebook& rulebook = at(Searched(index));
  const kernels::TilesParams& tiles = at(index).swap_of >= 0 ? rulebook.swapped_tiles : rulebook.tiles;
  return {.num_offsets = tiles.num_offsets,
          .out_rows = tiles.out_rows,
          .masks = tiles.masks,
          .in_rows = tiles.in_rows,
          .counters = tiles.counters,
          .by_weight = tiles.by_weight,
          .num_out = tiles.num_out,
          .out_capacity = tiles.out_capacity};
}

kernels::PairTablesView DeviceRulebooks::pairs(int index) const {
  const Rulebook& rulebook = at(Searched(index));
  kernels::PairTablesView view{.num_offsets = rulebook.num_offsets,
                               .in_pairs = rulebook.in_pairs,
                               .in_capacity = rulebook.in_capacity,
                               .out_pairs = rulebook.out_pairs,
                               .out_capacity = rulebook.out_capacity,
                               .in_masks = rulebook.in_masks,
                               .out_masks = rulebook.out_masks,
                               .offset_begin = sizes_->offsets_on_host(Searched(index)),
                               .num_in_rows = levels_->num_sites(rulebook.in_level),
                               .num_out_rows = levels_->num_sites(rulebook.out_level),
                               .identity_offset = rulebook.has_identity ? rulebook.num_offsets / 2 : -1};
  if (at(index).swap_of >= 0) {
    std::swap(view.in_pairs, view.out_pairs);
    std::swap(view.in_capacity, view.out_capacity);
    std::swap(view.in_masks, view.out_masks);
    std::swap(view.num_in_rows, view.num_out_rows);
  }
  return view;
}

}  // namespace voxserve
