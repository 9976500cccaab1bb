#pragma once

// DeviceLevels makes the coordinate levels of a batch on a GPU. A level is the list of the sites (occupied voxels) of
// all samples at one unit: here, their MortonKeys in ascending order.
//
// Levels are added first, each after its parent, and made together. Their numbers of sites stay on the device until
// DeviceSizes copies them, so memory is taken for a bound: the most sites that a level's rule can make from its
// parent's capacity, within its spatial shape. For a chain of strided levels there is a second bound: the most sites
// that all rules of the chain together can make from the sites with which the chain begins (kernels::OutputReach).
//
// A DeviceGeometry has one and begins it anew for every batch. Methods return RESOURCE_EXHAUSTED if memory does not
// suffice, or if a level could have more than 2^31 - 1 sites or candidates for sites. Not thread-safe.

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/geometry/batch_capacities.h"
#include "engine/geometry/device_sizes.h"
#include "engine/geometry/geometry_memory.h"
#include "kernels/coordinates/output_coordinates.h"
#include "kernels/coordinates/site_filter.h"
#include "kernels/coordinates/site_union.h"
#include "kernels/core/scratch.h"

namespace voxserve {

class DeviceLevels {
 public:
  struct Level {
    uint64_t* keys = nullptr;  // [capacity]
    int64_t capacity = 0;
    const int64_t* num_sites = nullptr;  // on the device
    int64_t* sample_begin = nullptr;     // [samples + 1] after MakeSampleBegins, else null
    int parent = -1;
    // The chain of strided levels that ends here begins with at most first_sites sites. `reach` bounds the sites that
    // each of those first sites can make on this level.
    int64_t first_sites = 0;
    kernels::OutputReach reach;
    // All coordinates of an axis are from 0 to extent - 1, unless the batch does not fit its capacities; 0: not known.
    kernels::Axes extent = {0, 0, 0, 0};
    // The parameters of the kernel that makes the level, without the workspace; not set for level 0.
    std::variant<kernels::OutputCoordinatesParams, kernels::SiteUnionParams, kernels::SiteFilterParams> made_by;
  };

  // Begins a batch, after sizes.Begin. Both arguments must live until the next Begin.
  void Begin(const DeviceSizes& sizes, GeometryMemory& memory);

  // Adds level 0, the voxels of at most num_points points. extent: Level::extent. Returns the memory for the voxels'
  // keys, [num_points].
  absl::StatusOr<uint64_t*> AddVoxels(int64_t num_points, const kernels::Axes& extent = {});
  // Add a level as GeometryMaker describes.
  absl::Status Add(int level, int parent, kernels::OutputCoordinatesParams rule);
  absl::Status AddUnion(int level, int a, int b);
  absl::Status AddFiltered(int level, int parent, kernels::SiteFilterParams filter);
  // Makes the added levels.
  absl::Status Make();
  absl::Status MakeSampleBegins(absl::Span<const int> levels);
  // Call after each Make, while the host does not know the numbers of sites. Limits the levels that have been made to
  // these capacities (kernels/coordinates/check_capacities.h): afterwards the levels' capacities and num_sites() are at
  // most these. If one is too small, all numbers of sites on the device become 0, and no point has a voxel; they stay 0
  // when levels are added and held later.
  absl::Status Hold(const BatchCapacities& capacities, int64_t num_points, int32_t* point_to_voxel);

  // Set the numbers of sites: TakeNumSites from the sizes on the host, SetNumSites from levels that the CPU made.
  void TakeNumSites();
  void SetNumSites(std::vector<int64_t> num_sites) { num_sites_ = std::move(num_sites); }
  // Shrinks capacities to the numbers of sites, so that later levels and rulebooks need less memory.
  void ShrinkToSites();

  // Upload arrays of a level that the CPU made. The caller waits for the stream before it changes the sources.
  absl::Status UploadSampleBegin(int level, const int64_t* sample_begin);
  absl::Status UploadKeys(int level, const kernels::ScratchVector<uint64_t>& keys);

  const Level& at(int level) const { return levels_[static_cast<size_t>(level)]; }
  const std::vector<int64_t>& num_sites() const { return num_sites_; }  // by level
  int64_t num_sites(int level) const { return num_sites_[static_cast<size_t>(level)]; }

 private:
  Level& At(int level) { return levels_[static_cast<size_t>(level)]; }
  // Takes memory for a level's keys and sets where its number of sites will stand.
  absl::Status TakeKeys(int level, int parent, int64_t capacity);
  absl::Status MakeUnion(kernels::SiteUnionParams& params);
  absl::Status MakeFiltered(kernels::SiteFilterParams& params);
  // Makes the added level `first` and the following ones that one launch can make with it. `first` and the result, the
  // next level to make, are indices into added_.
  absl::StatusOr<size_t> MakeChain(size_t first);

  const DeviceSizes* sizes_ = nullptr;
  GeometryMemory* memory_ = nullptr;
  std::vector<Level> levels_;
  std::vector<int> added_;  // levels that are not made yet
  std::vector<int64_t> num_sites_;
};

}  // namespace voxserve
