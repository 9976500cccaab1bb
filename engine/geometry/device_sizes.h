#pragma once

// DeviceSizes holds the sizes that kernels of the geometry pass count on a GPU. All of them lie in one block of device
// memory, and one copy brings them to the host.
//
// A DeviceGeometry has one and begins it anew for every batch. The block is in the context's `batch` arena; its copy
// goes through the page-locked memory of the context's `sizes`. Not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/geometry/geometry_memory.h"

namespace voxserve {

// Returns RESOURCE_EXHAUSTED (OUT_OF_MEMORY) if `rows` is above 2^31 - 1, since rows are numbered with 31 bits. `what`
// names the rows in the error.
absl::Status CheckNumRows(int64_t rows, const char* what);

class DeviceSizes {
 public:
  // The numbers that decide how large the arrays are. The host knows them before the batch runs.
  struct Shape {
    int32_t dimension = 3;
    int32_t num_samples = 0;
    int num_levels = 0;                          // level 0 included
    absl::Span<const int32_t> rulebook_offsets;  // K of each rulebook
    int64_t num_selected = 0;                    // farthest points of all samples together; 0: none are sampled
  };

  // The block's arrays. batch_counts.h defines the counts of points and voxels.
  struct Arrays {
    int64_t* sample_begin = nullptr;  // [num_samples + 1]
    int64_t* num_invalid = nullptr;   // [num_samples], like the next three
    int64_t* num_out_of_range = nullptr;
    int64_t* num_dropped_points = nullptr;
    int64_t* num_dropped_voxels = nullptr;
    int64_t* max_coordinate = nullptr;  // [kMaxDimension] VoxelizeParams::max_coordinate; 0 unless kMinimum
    int64_t* num_sites = nullptr;       // [num_levels]; level 0 uses sample_begin[num_samples] instead
    int64_t* held_sites =
        nullptr;  // [num_levels] the sites that fit their capacities (kernels/coordinates/check_capacities.h)
    int64_t* beyond_limits = nullptr;  // [num_levels, num_samples] BatchCounts::num_beyond_limits
    int64_t* num_valid = nullptr;      // [num_samples]
    int64_t* selected = nullptr;       // holds [num_selected] int32
    int64_t* offset_begin = nullptr;   // [K + 1] for each rulebook, one after the other
  };

  // Begins a batch: sets all sizes on the host to 0, and the arrays on the device to null until TakeMemory.
  void Begin(const Shape& shape, GeometryMemory& memory);
  // Takes the memory on the device and sets all sizes there to 0. A size stays 0 where the kernel that counts it does
  // not run. A batch that is replayed (DeviceGeometry::BeginReplay) has its memory already, and does not call this.
  absl::Status TakeMemory();

  // QueueCopy starts the copy of all sizes on the stream. The caller waits for the stream and then calls TakeCopy,
  // after which on_host() is valid. Both may be called again when kernels have counted more.
  absl::Status QueueCopy();
  void TakeCopy();

  int32_t dimension() const { return shape_.dimension; }
  int32_t num_samples() const { return shape_.num_samples; }
  int num_levels() const { return shape_.num_levels; }
  int num_rulebooks() const { return static_cast<int>(offsets_before_.size()) - 1; }
  int64_t num_selected() const { return shape_.num_selected; }

  const Arrays& on_device() const { return on_device_; }
  const Arrays& on_host() const { return on_host_; }  // after TakeCopy
  // [K + 1] the begins of one rulebook's offsets.
  int64_t* offsets_on_device(int rulebook) const { return on_device_.offset_begin + OffsetsBefore(rulebook); }
  int64_t* offsets_on_host(int rulebook) const { return on_host_.offset_begin + OffsetsBefore(rulebook); }
  int64_t num_pairs(int rulebook) const { return on_host_.offset_begin[OffsetsBefore(rulebook + 1) - 1]; }

 private:
  // Divides a block into arrays. Returns the number of values in the block. If `block` is null, it only counts the
  // values.
  int64_t Cut(int64_t* block, Arrays& arrays) const;
  int64_t OffsetsBefore(int rulebook) const { return offsets_before_[static_cast<size_t>(rulebook)]; }

  GeometryMemory* memory_ = nullptr;
  Shape shape_;                                // without rulebook_offsets
  std::vector<int64_t> offsets_before_ = {0};  // by rulebook: the offset_begin values of all rulebooks before it
  Arrays on_device_;
  Arrays on_host_;
  std::vector<int64_t> host_;
};

}  // namespace voxserve
