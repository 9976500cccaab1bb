#pragma once

// DeviceRulebooks makes the rulebooks of a batch on a GPU, in the forms that its convolutions and pools read.
//
// Rulebooks are added first and made together, after their levels: first all coordinate tables, then all searches, then
// the forms that steps read (rulebook_forms.h). The work for one rulebook seldom fills a GPU. Memory is taken for the
// capacities of the rulebooks' levels: the numbers of sites if the host knows them, else bounds from the numbers of
// points. A neighbour table that no step reads lives only until the other forms are made from it.
//
// A DeviceGeometry has one and begins it anew for every batch. Methods return RESOURCE_EXHAUSTED if memory does not
// suffice. Not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/geometry/device_levels.h"
#include "engine/geometry/device_sizes.h"
#include "engine/geometry/geometry_maker.h"
#include "engine/geometry/geometry_memory.h"
#include "kernels/conv/gather_scatter.h"
#include "kernels/conv/neighbours.h"
#include "kernels/conv/rulebook.h"
#include "kernels/conv/tiles.h"
#include "kernels/coordinates/brick_table.h"
#include "kernels/coordinates/neighbour_search.h"

namespace voxserve {

class DeviceRulebooks {
 public:
  // Begins a batch, after sizes.Begin and levels.Begin. All three must live until the next Begin.
  void Begin(const DeviceSizes& sizes, const DeviceLevels& levels, GeometryMemory& memory);

  // Add a rulebook as GeometryMaker describes.
  void Add(int index, const RulebookRequest& request) { searches_.push_back({.index = index, .request = request}); }
  void Swap(int index, int of) { At(index).swap_of = of; }
  // Returns true if an added rulebook is asked for as pairs. The host must then learn its number of pairs.
  bool AsksForPairs() const;
  // Makes the added rulebooks. has_sizes: the levels' capacities are their numbers of sites.
  absl::Status Make(bool has_sizes);

  // Uploads a rulebook that the CPU made, in the forms of the request. Waits for the stream.
  absl::Status Upload(int index, const RulebookRequest& request, const kernels::RulebookView& made);

  // The methods below need the sizes on the host.

  // Returns RESOURCE_EXHAUSTED if a rulebook has 2^31 pairs or more: pairs are numbered with 31 bits.
  absl::Status CheckNumPairs() const;
  // Each view is valid if the rulebook's request asked for its form. Without the form, pairs() has null tables.
  kernels::PairTablesView pairs(int index) const;
  kernels::NeighboursView neighbours(int index) const;
  kernels::TilesView tiles(int index) const;

 private:
  struct Rulebook {
    int32_t num_offsets = 0;
    RulebookForms forms;
    int32_t* neighbours = nullptr;          // [K, out_capacity]; null where no step reads it
    int32_t* swapped_neighbours = nullptr;  // [K, in_capacity]; null where no step reads it
    int32_t* in_pairs = nullptr;
    int64_t in_capacity = 0;
    int32_t* out_pairs = nullptr;
    int64_t out_capacity = 0;
    uint32_t* in_masks = nullptr;
    uint32_t* out_masks = nullptr;
    // Bit masks of the offsets at which a row has a neighbour. Tiles are made from them; null after that, and where K
    // is above kernels::kSortBits.
    uint32_t* row_masks = nullptr;          // [out_capacity]
    uint32_t* swapped_row_masks = nullptr;  // [in_capacity]
    // Temporary tables, from which tiles are made; null after that.
    int32_t* row_inputs = nullptr;          // [out_capacity, RowInputsPitch(K)] if lists_inputs
    int32_t* swapped_row_inputs = nullptr;  // [in_capacity] if swaps_blocks
    kernels::TilesParams tiles;             // without what ListTiles adds, like swapped_tiles
    kernels::TilesParams swapped_tiles;
    int in_level = 0;
    int out_level = 0;
    bool has_identity = false;
    bool lists_inputs = false;  // only tiles are needed: the search writes row_inputs in place of neighbours
    bool swaps_blocks = false;  // the search also writes swapped_row_masks and swapped_row_inputs
    int swap_of = -1;           // 0 or above: rulebook `swap_of` with its pairs swapped; other members are unused
  };
  // A rulebook that was added and is not made yet.
  struct Search {
    int index = 0;  // the rulebook's number
    RulebookRequest request;
  };

  Rulebook& At(int index) { return rulebooks_[static_cast<size_t>(index)]; }
  const Rulebook& at(int index) const { return rulebooks_[static_cast<size_t>(index)]; }
  const Rulebook& RulebookOf(const Search& search) const { return at(search.index); }
  // Returns the rulebook that holds the tables of rulebook `index`: itself, or the one that it swaps.
  int Searched(int index) const { return at(index).swap_of < 0 ? index : at(index).swap_of; }

  absl::Status SearchNeighbours();
  absl::Status SwapNeighbours();
  absl::Status MakePairTables();
  // Take memory for the tables that steps read.
  absl::Status TakeTables(int index, const RulebookRequest& request, int64_t in_capacity, int64_t out_capacity,
                          bool has_sizes);
  absl::Status TakeTiles(const RulebookRequest& request, bool has_sizes, Rulebook& rulebook);
  template <typename T>
  absl::StatusOr<T*> TakeTable(int64_t count, bool has_sizes) {
    return has_sizes ? memory_->TakeSized<T>(count) : memory_->Take<T>(count);
  }
  // Takes memory for temporary neighbour tables, which no step reads: other forms are made from them.
  absl::Status TakeTemporaryTables(Rulebook& rulebook);
  // Takes temporary memory for the row masks, which the search and SwapNeighbours write.
  absl::Status TakeRowMasks(Rulebook& rulebook);
  // Resets the pointers to temporary tables. The caller gives the memory back.
  static void ForgetTemporaryTables(Rulebook& rulebook);
  // Appends the parameters of the rulebook's tiles. Its neighbours or lists of inputs must have been made.
  static void ListTiles(const RulebookRequest& request, const Rulebook& rulebook,
                        std::vector<kernels::TilesParams>& tiles);
  absl::Status MakeTiles(absl::Span<const kernels::TilesParams> params);
  // Makes a coordinate table of each of these levels. The tables lie in scratch memory and are valid until scratch is
  // taken again.
  absl::StatusOr<std::vector<kernels::cuda::BrickTable>> MakeTables(absl::Span<const int> levels);
  kernels::NeighbourSearchParams SearchParams(const Search& search) const;
  absl::Status MakeForms();

  const DeviceSizes* sizes_ = nullptr;
  const DeviceLevels* levels_ = nullptr;
  GeometryMemory* memory_ = nullptr;
  std::vector<Rulebook> rulebooks_;
  std::vector<Search> searches_;  // rulebooks that are not made yet
};

}  // namespace voxserve
