#pragma once

// A GeometryMaker makes the coordinate levels and rulebooks of a batch: BatchGeometry on the CPU, DeviceGeometry on a
// GPU, UploadedGeometry on the CPU for a GPU. One loop asks all of them (engine/executor/geometry_pass.h).
//
// Parents are asked for before their children, levels before the rulebooks between them, a rulebook before those that
// swap it. A maker may wait until Finish with its work. RESOURCE_EXHAUSTED for memory.

#include <cstdint>

#include "absl/status/status.h"
#include "engine/geometry/rulebook_forms.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/coordinates/site_filter.h"

namespace voxserve {

// A rulebook that is searched for.
struct RulebookRequest {
  int in_level = 0;
  int out_level = 0;
  kernels::ConvGeometry geometry;
  RulebookForms forms;  // on a GPU; a CPU's steps read one form
  // On the CPU; a GPU has one way.
  kernels::MapSearch search = kernels::MapSearch::kHash;
  int64_t max_grid_bytes = 0;  // a larger grid becomes a hash table
};

class GeometryMaker {
 public:
  virtual ~GeometryMaker() = default;

  // The sites of a level from its parent's. `rule` holds rule, geometry, shape and bounds.
  virtual absl::Status MakeLevel(int level, int parent, kernels::OutputCoordinatesParams rule) = 0;
  // The sites of levels a and b together.
  virtual absl::Status UniteLevels(int level, int a, int b) = 0;
  // Some of the parent's sites. `filter` holds bounds, scores and threshold.
  virtual absl::Status FilterLevel(int level, int parent, kernels::SiteFilterParams filter) = 0;
  // Rulebook number `index`.
  virtual absl::Status MakeRulebook(int index, const RulebookRequest& request) = 0;
  // Rulebook number `index` as rulebook `of` with its pairs swapped.
  virtual absl::Status SwapRulebook(int index, int of) = 0;
  // Makes all that has been asked for and not been made.
  virtual absl::Status Finish() = 0;
  // Where each sample's rows begin on a level, after Finish.
  virtual absl::Status MakeSampleBegin(int level) = 0;
};

}  // namespace voxserve
