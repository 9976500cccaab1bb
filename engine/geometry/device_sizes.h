#pragma once

// DeviceSizes holds the sizes that kernels of the geometry pass count on a GPU. All lie in one block of device memory,
// which one copy brings to the host.
//
// A DeviceGeometry has one and begins it anew for every batch. The block is in the context's `batch` arena, its copy
// goes through the context's `sizes`. Not thread-safe.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/geometry/geometry_memory.h"

namespace voxserve {

// RESOURCE_EXHAUSTED (OUT_OF_MEMORY) above 2^31 - 1, the most that 31 bits can number. what: is counted, in the error's
// words.
absl::Status CheckNumRows(int64_t rows, const char* what);

class DeviceSizes {
 public:
  // The batch's parts; known before it runs.
  struct Shape {
    int32_t dimension = 3;
    int32_t num_samples = 0;
    int num_levels = 0;                          // level 0 included
    absl::Span<const int32_t> rulebook_offsets;  // K of each rulebook
    int64_t num_selected = 0;                    // farthest points, of all samples; 0: none are sampled
  };

  // The block's arrays.
  struct Arrays {
    int64_t* sample_begin = nullptr;  // [num_samples + 1], and [num_samples] of the next four
    int64_t* num_invalid = nullptr;
    int64_t* num_out_of_range = nullptr;
    int64_t* num_dropped_points = nullptr;
    int64_t* num_dropped_voxels = nullptr;
    int64_t* max_coordinate = nullptr;  // [1] of the voxels, where their origin is their minimum
    int64_t* num_sites = nullptr;       // [num_levels]; that of level 0 is sample_begin[num_samples]
    int64_t* held_sites = nullptr;      // [num_levels] those that there is room for (kernels/coordinates/hold_sites.h)
    int64_t* beyond_limits = nullptr;   // [num_levels, num_samples]
    int64_t* num_valid = nullptr;       // [num_samples]
    int64_t* selected = nullptr;        // [num_selected] of 4 bytes each
    int64_t* offset_begin = nullptr;    // [K + 1] of each rulebook, one after the other
  };

  // Begins a batch: sets all sizes to 0 in both memories. A size stays 0 where the kernel that counts it does not run.
  absl::Status Begin(const Shape& shape, GeometryMemory& memory);

  // Starts the copy of all sizes. TakeCopy follows when the stream has been waited for. Both may be called again, when
  // more has been counted.
  absl::Status QueueCopy();
  void TakeCopy();

  int32_t dimension() const { return shape_.dimension; }
  int32_t num_samples() const { return shape_.num_samples; }
  int num_levels() const { return shape_.num_levels; }
  int num_rulebooks() const { return static_cast<int>(offsets_before_.size()) - 1; }
  int64_t num_selected() const { return shape_.num_selected; }

  const Arrays& on_device() const { return on_device_; }
  const Arrays& on_host() const { return on_host_; }  // after TakeCopy
  // [K + 1] of one rulebook.
  int64_t* offsets_on_device(int rulebook) const { return on_device_.offset_begin + OffsetsBefore(rulebook); }
  int64_t* offsets_on_host(int rulebook) const { return on_host_.offset_begin + OffsetsBefore(rulebook); }
  int64_t num_pairs(int rulebook) const { return on_host_.offset_begin[OffsetsBefore(rulebook + 1) - 1]; }

 private:
  // Cuts a block, or nullptr to count alone, into arrays. Returns how many values the block has.
  int64_t Cut(int64_t* block, Arrays& arrays) const;
  int64_t OffsetsBefore(int rulebook) const { return offsets_before_[static_cast<size_t>(rulebook)]; }

  GeometryMemory* memory_ = nullptr;
  Shape shape_;                                // without rulebook_offsets
  std::vector<int64_t> offsets_before_ = {0};  // by rulebook: offset_begin values of those before it
  Arrays on_device_;
  Arrays on_host_;
  std::vector<int64_t> host_;
};

}  // namespace voxserve
