#pragma once

// What a batch on a GPU is given before anybody knows its sizes. One that needs more is told so by its geometry
// (DeviceGeometry::overflowed) and makes nothing.

#include <cstdint>
#include <vector>

namespace voxserve {

struct SiteRooms {
  std::vector<int64_t> capacities;  // sites, by level; none: there are no rooms, and the host waits for the sizes
  int32_t axis_bits = 0;            // of the voxels' coordinates, from each sample's least on; 0: as many as a key has
  // Of arrays of points, and of what is uploaded for them, where batches of a kind shall lie in the same memory
  // (executor/kept_rooms.h); 0: as much as the batch has.
  int64_t points = 0;
  int64_t upload_bytes = 0;
};

}  // namespace voxserve
