#pragma once

// DeviceLevels makes the coordinate levels of a batch on a GPU: each is its sites' keys, ascending MortonKeys.
//
// Levels are added first, each after its parent, and made together. Their numbers of sites stay on the device until
// DeviceSizes brings them over, so memory is taken for what they can be at most: what a level's rule can make of its
// parent's capacity, within its spatial shape, but along a chain of strided levels no more than all of them together
// can make of the sites that the chain begins with (kernels::OutputReach).
//
// A DeviceGeometry has one and begins it anew for every batch. RESOURCE_EXHAUSTED for memory, and for more candidates
// or sites than 31 bits can number. Not thread-safe.

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/geometry/device_sizes.h"
#include "engine/geometry/geometry_memory.h"
#include "engine/geometry/site_rooms.h"
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
    int64_t* sample_begin = nullptr;     // [samples + 1] where asked for
    int parent = -1;
    // The level came strided level by strided level of one of at most so many sites, each of which can have asked for
    // `reach`.
    int64_t first_sites = 0;
    kernels::OutputReach reach;
    // How it is made, but for the workspace; not of level 0.
    std::variant<kernels::OutputCoordinatesParams, kernels::SiteUnionParams, kernels::SiteFilterParams> made_by;
  };

  // Begins a batch. Both outlive it; the sizes have begun.
  void Begin(const DeviceSizes& sizes, GeometryMemory& memory);

  // Level 0, the voxels of so many points or fewer. Returns where their keys go.
  absl::StatusOr<uint64_t*> AddVoxels(int64_t num_points);
  // Add a level as GeometryMaker describes.
  absl::Status Add(int level, int parent, kernels::OutputCoordinatesParams rule);
  absl::Status AddUnion(int level, int a, int b);
  absl::Status AddFiltered(int level, int parent, kernels::SiteFilterParams filter);
  // Makes what has been added.
  absl::Status Make();
  absl::Status MakeSampleBegin(int level);
  // After Make: holds the levels, whose numbers of sites nobody knows, to these rooms (hold_sites.h): capacities and
  // num_sites() are those of the rooms from now on, and numbers on the device 0 where one of them is too small.
  absl::Status Hold(const SiteRooms& rooms, int64_t num_points, int32_t* point_to_voxel);

  // Takes the numbers of sites: from DeviceSizes, or from levels that were made elsewhere.
  void TakeNumSites();
  void SetNumSites(std::vector<int64_t> num_sites) { num_sites_ = std::move(num_sites); }
  // Shrinks capacities to the numbers of sites, which have been taken: what follows needs less memory.
  void ShrinkToSites();

  // Uploads what has been made elsewhere. The caller waits for the stream before it changes anything there.
  absl::Status UploadSampleBegin(int level, const int64_t* sample_begin);
  absl::Status UploadKeys(int level, const kernels::ScratchVector<uint64_t>& keys);

  const Level& at(int level) const { return levels_[static_cast<size_t>(level)]; }
  const std::vector<int64_t>& num_sites() const { return num_sites_; }  // by level
  int64_t num_sites(int level) const { return num_sites_[static_cast<size_t>(level)]; }

 private:
  Level& At(int level) { return levels_[static_cast<size_t>(level)]; }
  // Takes memory for a level's sites, and names where their number will stand.
  absl::Status TakeKeys(int level, int parent, int64_t capacity);
  absl::Status MakeUnion(kernels::SiteUnionParams& params);
  absl::Status MakeFiltered(kernels::SiteFilterParams& params);
  // Makes the added level `first` and those behind it that one launch can make with it. Returns the next one.
  absl::StatusOr<size_t> MakeChain(size_t first);

  const DeviceSizes* sizes_ = nullptr;
  GeometryMemory* memory_ = nullptr;
  std::vector<Level> levels_;
  std::vector<int> added_;  // and not made
  std::vector<int64_t> num_sites_;
};

}  // namespace voxserve
