#pragma once

// A GeometryMaker makes the coordinate levels and rulebooks of a batch: BatchGeometry on the CPU, DeviceGeometry on a
// GPU, UploadedGeometry on the CPU for a GPU. MakeMaps (engine/executor/geometry_pass.h) calls all three in the same
// way.
// - A site is an occupied voxel of a sample. A level is the list of the sites of all samples at one unit; level 0 has
//   the voxels of the points. A level's parent is the level from whose sites it is made.
// - A rulebook says which input rows each output row reads, for each kernel offset.
//
// Callers ask for a parent before its children, for levels before the rulebooks between them, and for a rulebook before
// one that swaps it. A maker may delay its work until Finish. Methods return RESOURCE_EXHAUSTED if memory does not
// suffice; makers on the CPU may also throw std::bad_alloc. Not thread-safe.

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/geometry/rulebook_forms.h"
#include "engine/geometry/site_order_spec.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/coordinates/site_filter.h"

namespace voxserve {

// Describes a rulebook that is to be found by a search over the sites of two levels.
struct RulebookRequest {
  int in_level = 0;
  int out_level = 0;
  kernels::ConvGeometry geometry;
  RulebookForms forms;  // on a GPU; a CPU's steps read one form
  // How the CPU searches; a GPU has only one search.
  kernels::MapSearch search = kernels::MapSearch::kHash;
  int64_t max_grid_bytes = 0;  // for a search by a grid: a larger grid becomes a hash table
};

// Asks for order number `index`.
struct OrderRequest {
  int index = 0;
  SiteOrderSpec spec;
};

class GeometryMaker {
 public:
  virtual ~GeometryMaker() = default;

  // Makes a level's sites from its parent's. The caller sets rule, geometry, shape and bounds in `rule`.
  virtual absl::Status MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) = 0;
  // Makes a level of all sites of the levels a and b.
  virtual absl::Status UniteLevels(int level, int a, int b) = 0;
  // Makes a level of some of its parent's sites. The caller sets bounds, scores and threshold in `filter`.
  virtual absl::Status FilterLevel(int level, int parent, kernels::SiteFilterParams filter) = 0;
  // Makes rulebook number `index`.
  virtual absl::Status MakeRulebook(int index, const RulebookRequest& request) = 0;
  // Makes rulebook number `index`: rulebook `of` with its pairs swapped.
  virtual absl::Status SwapRulebook(int index, int of) = 0;
  // Makes everything that was asked for and is not made yet.
  virtual absl::Status Finish() = 0;
  // Finds where each sample's rows begin on these levels, together. Call it after Finish.
  virtual absl::Status MakeSampleBegins(absl::Span<const int> levels) = 0;
  // Makes orders of levels' sites, together. Call it once in a segment, after Finish.
  virtual absl::Status MakeOrders(absl::Span<const OrderRequest> orders) = 0;
};

}  // namespace voxserve
