#pragma once

// DeviceRulebooks makes the rulebooks of a batch on a GPU, in the forms that its convolutions and pools read.
//
// Rulebooks are added first and made together, when their levels have been made: all tables, all searches, all pair
// tables at once, since few of them alone fill a GPU. Memory is taken for their levels' capacities: the numbers of
// sites where the host knows them, else what the points bound. Neighbour tables that no step reads live only until the
// other forms are made of them.
//
// A DeviceGeometry has one and begins it anew for every batch. RESOURCE_EXHAUSTED for memory. Not thread-safe.

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
  // Begins a batch. All three outlive it; sizes and levels have begun.
  void Begin(const DeviceSizes& sizes, const DeviceLevels& levels, GeometryMemory& memory);

  // Add a rulebook as GeometryMaker describes.
  void Add(int index, const RulebookRequest& request) { searches_.push_back({.index = index, .request = request}); }
  void Swap(int index, int of) { At(index).swap_of = of; }
  // True where the host must learn how many pairs what has been added has.
  bool AsksForPairs() const;
  // Makes what has been added. has_sizes: the levels' capacities are their numbers of sites.
  absl::Status Make(bool has_sizes);

  // Uploads what has been made elsewhere, in the forms that are asked for. Waits for the stream.
  absl::Status Upload(int index, const RulebookRequest& request, const kernels::RulebookView& made);

  // The methods below need the sizes on the host.

  // RESOURCE_EXHAUSTED where a rulebook has 2^31 pairs or more, which is what a pair's number can hold.
  absl::Status CheckNumPairs() const;
  // Where the form was asked for; pairs that were not have null tables.
  kernels::PairTablesView pairs(int index) const;
  kernels::NeighboursView neighbours(int index) const;
  kernels::TilesView tiles(int index) const;

 private:
  struct Rulebook {
    int32_t num_offsets = 0;
    RulebookForms forms;
    int32_t* neighbours = nullptr;          // [K, out_capacity]; null where no step reads it
    int32_t* swapped_neighbours = nullptr;  // [K, in_capacity]; likewise
    int32_t* in_pairs = nullptr;
    int64_t in_capacity = 0;
    int32_t* out_pairs = nullptr;
    int64_t out_capacity = 0;
    uint32_t* in_masks = nullptr;
    uint32_t* out_masks = nullptr;
    // The offsets that a row has, which tiles are made by; null once they are, or where they are too many.
    uint32_t* row_offsets = nullptr;          // [out_capacity]
    uint32_t* swapped_row_offsets = nullptr;  // [in_capacity]
    int32_t* row_inputs = nullptr;            // as passing as those
    kernels::TilesParams tiles;               // without neighbours and order, as the next
    kernels::TilesParams swapped_tiles;
    int in_level = 0;
    int out_level = 0;
    bool has_identity = false;
    bool lists_inputs = false;  // tiles alone are made of what is found: row_inputs serve in place of neighbours
    int swap_of = -1;           // then only this holds
  };
  // A map search that was added, and what it is made of.
  struct Search {
    int index = 0;  // of the rulebook
    RulebookRequest request;
  };

  Rulebook& At(int index) { return rulebooks_[static_cast<size_t>(index)]; }
  const Rulebook& at(int index) const { return rulebooks_[static_cast<size_t>(index)]; }
  const Rulebook& RulebookOf(const Search& search) const { return at(search.index); }
  // The rulebook that holds the tables of number `index`: that one, or the one that it swaps.
  int Searched(int index) const { return at(index).swap_of < 0 ? index : at(index).swap_of; }

  absl::Status SearchNeighbours();
  absl::Status SwapNeighbours();
  absl::Status MakePairTables();
  // Take memory for what steps read.
  absl::Status TakeTables(int index, const RulebookRequest& request, int64_t in_capacity, int64_t out_capacity,
                          bool has_sizes);
  absl::Status TakeTiles(const RulebookRequest& request, bool has_sizes, Rulebook& rulebook);
  template <typename T>
  absl::StatusOr<T*> TakeTable(int64_t count, bool has_sizes) {
    return has_sizes ? memory_->TakeSized<T>(count) : memory_->Take<T>(count);
  }
  // Takes memory for the neighbour tables that the other forms are made of, where no step reads them.
  absl::Status TakePassingTables(Rulebook& rulebook);
  // The rows' offsets of all searches, as passing; zeros where SwapNeighbours adds to them.
  absl::Status TakeRowOffsets();
  // The way back from TakePassingTables; the memory is given back by the caller.
  static void ForgetPassingTables(Rulebook& rulebook);
  // Adds what the rulebook's tiles are made of, once its neighbours are there.
  static void ListTiles(const RulebookRequest& request, const Rulebook& rulebook,
                        std::vector<kernels::TilesParams>& tiles);
  absl::Status MakeTiles(absl::Span<const kernels::TilesParams> params);
  // Tables over these levels; the scratch memory holds them, until it is asked for again.
  absl::StatusOr<std::vector<kernels::cuda::BrickTable>> MakeTables(absl::Span<const int> levels);
  kernels::NeighbourSearchParams SearchParams(const Search& search) const;
  absl::Status MakeForms();

  const DeviceSizes* sizes_ = nullptr;
  const DeviceLevels* levels_ = nullptr;
  GeometryMemory* memory_ = nullptr;
  std::vector<Rulebook> rulebooks_;
  std::vector<Search> searches_;  // added and not made
};

}  // namespace voxserve
