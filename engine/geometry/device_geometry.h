#pragma once

// All that a batch's coordinates decide, on a GPU: the counterpart of BatchGeometry, with rows in Morton order.
//
// A network's levels and rulebooks are named first and made together: levels one after the other, as each follows from
// its parent, then all tables, all searches and all pair tables at once, since few of them alone fill a GPU.
//
// Nothing comes back to the host while that is done: sizes stay on the device, memory is taken for what they can be at
// most, and QueueSizes brings all of them over in one copy, with the one wait before the result. A level has room for
// what its rule can make of its parent's capacity, within its spatial shape, but along a chain of strided levels for no
// more than all of them together can make of the sites that the chain begins with (kernels::OutputReach).
//
// A context's executor keeps one and fills it anew for every batch; memory is the context's batch arena. Not
// thread-safe.

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/geometry/batch_counts.h"
#include "engine/geometry/batch_geometry.h"
#include "engine/geometry/point_sampling.h"
#include "engine/runtime/execution_context.h"
#include "kernels/conv/gather_scatter.h"
#include "kernels/conv/neighbours.h"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/coordinates/neighbour_search.h"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/coordinates/site_filter.h"
#include "kernels/coordinates/site_union.h"
#include "kernels/points/voxelize.h"

namespace voxserve {

// What of a rulebook a batch's convolutions and pools read. Each form is made only where it is asked for.
struct RulebookForms {
  bool pairs = false;               // either way round
  bool neighbours = false;          // pools read them too
  bool swapped_neighbours = false;  // for inverse and transposed convolutions and pools

  bool operator==(const RulebookForms&) const = default;
  RulebookForms& operator|=(const RulebookForms& others) {
    pairs |= others.pairs;
    neighbours |= others.neighbours;
    swapped_neighbours |= others.swapped_neighbours;
    return *this;
  }
};

class DeviceGeometry : public BatchCounts {
 public:
  // What the batch is made of; known before it runs.
  struct Shape {
    int32_t dimension = 3;
    int32_t num_samples = 0;
    int num_levels = 0;                          // level 0 included
    absl::Span<const int32_t> rulebook_offsets;  // K of each rulebook
    int64_t num_selected = 0;                    // farthest points, of all samples; 0: SamplePoints does nothing
  };

  // Begins a batch; forgets the one before.
  absl::Status Begin(const Shape& shape, CudaContext& context);

  // As BatchGeometry's; num_valid and selected_points come with the sizes. words: the sampling's, in device memory.
  absl::Status SamplePoints(const PointSampling& sampling, const int64_t* words, int64_t max_sample_points,
                            kernels::VoxelizeParams* points);
  // As BatchGeometry's. Pointers of `fixed` are device memory. max_voxels 0: no limit.
  absl::Status Voxelize(const kernels::VoxelizeParams& fixed, int64_t max_voxels, kernels::VoxelOrder order);
  // Levels ascending, each after its parent, then rulebooks. What is added is made by MakeMaps.
  absl::Status AddLevel(int level, int parent, kernels::OutputCoordinatesParams rule);
  absl::Status AddUnion(int level, int a, int b);
  absl::Status AddFiltered(int level, int parent, kernels::SiteFilterParams filter);
  absl::Status AddRulebook(int index, int in_level, int out_level, const kernels::ConvGeometry& geometry,
                           const RulebookForms& forms, kernels::MapSearch search, int64_t max_grid_bytes);
  void SwapRulebook(int index, int of);
  absl::Status MakeMaps();

  // Where each sample's rows begin on a level, after MakeMaps.
  absl::Status MakeSampleBegin(int level);

  // Goes on with levels and rulebooks that features decide about, once the sizes of those before have been taken: what
  // is added from now on is made beside the features, which keep their memory.
  void BeginNextSegment();

  // Starts the copy of all sizes. After the stream has been waited for, TakeSizes makes what follows valid.
  absl::Status QueueSizes();
  // RESOURCE_EXHAUSTED where a rulebook has 2^31 pairs or more, which is what a pair's number can hold.
  absl::Status TakeSizes();

  // Instead of all that: what the CPU made of the same points, for a device without room to make it. Voxels first, then
  // the rulebooks that are not swapped ones (those: SwapRulebook), in the forms that are asked for.
  // Waits for the stream.
  absl::Status UploadVoxels(const BatchGeometry& made);
  absl::Status UploadRulebook(int index, int in_level, int out_level, const kernels::ConvGeometry& geometry,
                              const RulebookForms& forms, const kernels::RulebookView& made);

  absl::Status UploadSampleBegin(int level, const BatchGeometry& made);
  // As MortonKeys, in the CPU's order of rows: keys(level) is not ascending then.
  absl::Status UploadKeys(int level, const BatchGeometry& made);

  const std::vector<int64_t>& num_sites() const { return num_sites_; }  // by level
  // Where the form was asked for.
  kernels::PairTablesView rulebook(int index) const;
  kernels::NeighboursView neighbours(int index) const;

  // On the device; kernels/points/voxelize.h says what each holds.
  const int32_t* point_to_voxel() const { return point_to_voxel_; }
  const int32_t* sorted_points() const { return sorted_points_; }
  const int64_t* voxel_begin() const { return voxel_begin_; }
  // [samples + 1], of a level that it has been asked for.
  const int64_t* level_sample_begin(int level) const { return levels_[static_cast<size_t>(level)].sample_begin; }
  // [num_sites(level)] MortonKeys of a level, on the device: ascending where the GPU made its maps. Where the CPU did,
  // of levels that it has been asked for.
  const uint64_t* keys(int level) const { return levels_[static_cast<size_t>(level)].keys; }

  // Rulebooks that asked for a grid and got a hash table, because the grid would have passed max_grid_bytes.
  int64_t num_grid_fallbacks() const { return num_grid_fallbacks_; }

 private:
  struct Level {
    uint64_t* keys = nullptr;  // [capacity]
    int64_t capacity = 0;
    const int64_t* num_sites = nullptr;  // on the device
    int64_t* sample_begin = nullptr;     // [samples + 1] where asked for
    int parent = -1;
    // It came strided level by strided level of one of at most so many sites, each of which can have asked for `reach`.
    int64_t first_sites = 0;
    kernels::OutputReach reach;
    // How it is made, but for the workspace; not of level 0.
    std::variant<kernels::OutputCoordinatesParams, kernels::SiteUnionParams, kernels::SiteFilterParams> made_by;
  };
  // A map search that was added, and what it is made of.
  struct Search {
    int index = 0;  // of the rulebook
    kernels::ConvGeometry geometry;
    kernels::MapSearch strategy = kernels::MapSearch::kHash;  // kGrid or kHash
    int64_t max_grid_bytes = 0;
  };
  struct DeviceRulebook {
    int32_t num_offsets = 0;
    RulebookForms forms;
    int32_t* neighbours = nullptr;          // [K, out_capacity]; the pairs' own memory where nobody reads it later
    int32_t* swapped_neighbours = nullptr;  // [K, in_capacity]
    int32_t* in_pairs = nullptr;
    int64_t in_capacity = 0;
    int32_t* out_pairs = nullptr;
    int64_t out_capacity = 0;
    uint32_t* in_masks = nullptr;
    uint32_t* out_masks = nullptr;
    int64_t* offset_begin = nullptr;  // in sizes_
    int in_level = 0;
    int out_level = 0;
    bool has_identity = false;
    int swap_of = -1;  // then only this and the levels hold
  };

  // Cuts sizes_, the one block that comes back, into arrays; the same cuts are made of its copy.
  struct Sizes {
    int64_t* sample_begin;
    int64_t* num_invalid;
    int64_t* num_out_of_range;
    int64_t* num_dropped_points;
    int64_t* num_dropped_voxels;
    int64_t* num_sites;      // [num_levels]; of level 0: sample_begin[num_samples]
    int64_t* beyond_limits;  // [num_levels, num_samples]
    int64_t* uses_grid;      // [num_levels]
    int64_t* num_valid;      // [num_samples]
    int64_t* selected;       // [num_selected] of 4 bytes each
    int64_t* offset_begin;   // [K + 1] of each rulebook, one after the other
    int64_t count = 0;       // of all
  };
  Sizes CutSizes(int64_t* begin) const;
  absl::Status MakeLevels();
  // Memory for a level's sites, and where their number will stand.
  absl::Status TakeKeys(int level, int parent, int64_t capacity);
  absl::Status SearchByHash();
  absl::Status SearchByGrid();
  absl::Status MakePairTables();
  absl::Status SwapNeighbours();
  // Tables over these levels, each searched by `strategy`; the scratch memory holds them, until it is asked for again.
  absl::StatusOr<std::vector<kernels::cuda::CoordinateTable>> MakeTables(absl::Span<const int> levels,
                                                                         kernels::MapSearch strategy);
  absl::Status ReserveGrid(int64_t max_grid_bytes);
  kernels::NeighbourSearchParams SearchParams(const Search& search) const;
  absl::Status TakeTables(int index, int in_level, int out_level, int64_t in_capacity, int64_t out_capacity,
                          const kernels::ConvGeometry& geometry, const RulebookForms& forms);
  // Rows are numbered with 31 bits. what: is counted, in the error's words.
  static absl::Status CheckRows(int64_t rows, const char* what);
  // Of one kernel. Until the feature pass has begun its memory is free; the stream keeps the order.
  absl::StatusOr<void*> Scratch(size_t bytes);
  StreamView stream() const { return context_->stream.view(); }

  CudaContext* context_ = nullptr;
  Shape shape_;
  std::vector<int32_t> rulebook_offsets_;
  std::vector<int64_t> offsets_before_;  // by rulebook: offset_begin values of those before it
  Sizes sizes_{};                        // on the device
  std::vector<int64_t> host_sizes_;
  std::vector<Level> levels_;
  std::vector<DeviceRulebook> rulebooks_;
  std::vector<int> added_levels_;  // not made
  std::vector<Search> searches_;   // likewise
  std::vector<int64_t> num_sites_;
  int32_t* point_to_voxel_ = nullptr;
  int32_t* sorted_points_ = nullptr;
  int64_t* voxel_begin_ = nullptr;
  bool goes_on_ = false;
  std::vector<int> grid_levels_;  // for which a grid was asked
  int64_t num_grid_fallbacks_ = 0;
};

}  // namespace voxserve
