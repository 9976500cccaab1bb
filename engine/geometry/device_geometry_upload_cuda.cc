// What the CPU made, brought to a device that has no room to make it.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/geometry/device_geometry.h"
#include "engine/runtime/cuda_status.h"
#include "kernels/conv/pair_tables.h"
#include "kernels/coordinates/morton_key.h"

namespace voxserve {
namespace {

template <typename T>
absl::Status CopyToDevice(T* to, const T* from, size_t count, StreamView stream) {
  if (count == 0) return absl::OkStatus();
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyHostToDevice, stream.get()));
  return absl::OkStatus();
}

// [K, num_rows] the other row of each pair, or -1.
std::vector<int32_t> NeighbourTable(const kernels::RulebookView& rulebook, const int32_t* rows, int64_t num_rows,
                                    const int32_t* others) {
  std::vector<int32_t> table(static_cast<size_t>(rulebook.num_offsets * num_rows), -1);
  for (int32_t k = 0; k < rulebook.num_offsets; ++k) {
    for (int64_t pair = rulebook.offset_begin[k]; pair < rulebook.offset_begin[k + 1]; ++pair) {
      table[static_cast<size_t>(k * num_rows + rows[pair])] = others[pair];
    }
  }
  return table;
}

}  // namespace

absl::Status DeviceGeometry::UploadVoxels(const BatchGeometry& made) {
  DeviceArena& arena = context_->batch;
  sample_begin = made.sample_begin;
  num_invalid = made.num_invalid;
  num_out_of_range = made.num_out_of_range;
  num_dropped_points = made.num_dropped_points;
  num_dropped_voxels = made.num_dropped_voxels;
  num_beyond_limits = made.num_beyond_limits;
  num_valid = made.num_valid;
  selected_points = made.selected_points;
  num_sites_.clear();
  for (int level = 0; level < shape_.num_levels; ++level) num_sites_.push_back(made.num_sites(level));
  host_sizes_.assign(static_cast<size_t>(sizes_.count), 0);
  const auto num_points = static_cast<int64_t>(made.point_to_voxel.size());
  ASSIGN_OR_RETURN(point_to_voxel_, arena.TakeArray<int32_t>(num_points));
  ASSIGN_OR_RETURN(sorted_points_, arena.TakeArray<int32_t>(num_points));
  ASSIGN_OR_RETURN(voxel_begin_, arena.TakeArray<int64_t>(num_sites_[0] + 1));
  RETURN_IF_ERROR(CopyToDevice(point_to_voxel_, made.point_to_voxel.data(), made.point_to_voxel.size(), stream()));
  RETURN_IF_ERROR(CopyToDevice(sorted_points_, made.sorted_points.data(), made.sorted_points.size(), stream()));
  RETURN_IF_ERROR(
      CopyToDevice(voxel_begin_, made.voxel_begin.data(), static_cast<size_t>(num_sites_[0] + 1), stream()));
  return stream().Synchronize();
}

absl::Status DeviceGeometry::UploadRulebook(int index, int in_level, int out_level,
                                            const kernels::ConvGeometry& geometry, const RulebookForms& forms,
                                            const kernels::RulebookView& made) {
  RETURN_IF_ERROR(TakeTables(index, in_level, out_level, made.num_in_rows, made.num_out_rows, geometry, forms));
  const DeviceRulebook& rulebook = rulebooks_[static_cast<size_t>(index)];
  RETURN_IF_ERROR(CheckRows(made.num_pairs(), "pairs"));
  const auto num_pairs = static_cast<size_t>(made.num_pairs());
  const auto num_begins = static_cast<size_t>(made.num_offsets) + 1;
  std::copy_n(made.offset_begin, num_begins,
              CutSizes(host_sizes_.data()).offset_begin + offsets_before_[static_cast<size_t>(index)]);
  RETURN_IF_ERROR(CopyToDevice(rulebook.offset_begin, made.offset_begin, num_begins, stream()));
  if (forms.pairs) {
    context_->features.Reset();
    ASSIGN_OR_RETURN(int32_t * in_rows, context_->features.TakeArray<int32_t>(made.num_pairs()));
    ASSIGN_OR_RETURN(int32_t * out_rows, context_->features.TakeArray<int32_t>(made.num_pairs()));
    RETURN_IF_ERROR(CopyToDevice(in_rows, made.in_rows, num_pairs, stream()));
    RETURN_IF_ERROR(CopyToDevice(out_rows, made.out_rows, num_pairs, stream()));
    RETURN_IF_CUDA_ERROR(kernels::cuda::PairTablesFromLists({.num_offsets = made.num_offsets,
                                                             .num_pairs = made.num_pairs(),
                                                             .in_rows = in_rows,
                                                             .out_rows = out_rows,
                                                             .offset_begin = rulebook.offset_begin,
                                                             .in_capacity = made.num_in_rows,
                                                             .out_capacity = made.num_out_rows,
                                                             .in_pairs = rulebook.in_pairs,
                                                             .out_pairs = rulebook.out_pairs,
                                                             .in_masks = rulebook.in_masks,
                                                             .out_masks = rulebook.out_masks},
                                                            stream().get()));
  }
  std::vector<int32_t> neighbours, swapped;  // live until the stream has been waited for
  if (forms.neighbours) {
    neighbours = NeighbourTable(made, made.out_rows, made.num_out_rows, made.in_rows);
    RETURN_IF_ERROR(CopyToDevice(rulebook.neighbours, neighbours.data(), neighbours.size(), stream()));
  }
  if (forms.swapped_neighbours) {
    swapped = NeighbourTable(made, made.in_rows, made.num_in_rows, made.out_rows);
    RETURN_IF_ERROR(CopyToDevice(rulebook.swapped_neighbours, swapped.data(), swapped.size(), stream()));
  }
  return stream().Synchronize();
}

absl::Status DeviceGeometry::UploadSampleBegin(int index, const BatchGeometry& made) {
  Level& level = levels_[static_cast<size_t>(index)];
  const auto count = static_cast<size_t>(shape_.num_samples) + 1;
  ASSIGN_OR_RETURN(level.sample_begin, context_->batch.TakeArray<int64_t>(static_cast<int64_t>(count)));
  RETURN_IF_ERROR(CopyToDevice(level.sample_begin, made.level_sample_begin(index), count, stream()));
  return stream().Synchronize();
}

absl::Status DeviceGeometry::UploadKeys(int index, const BatchGeometry& made) {
  const kernels::CoordinateKey layout(shape_.dimension);
  std::vector<uint64_t> keys = made.keys(index);
  std::transform(keys.begin(), keys.end(), keys.begin(),
                 [&](uint64_t key) { return kernels::ToMortonKey(layout, key); });
  Level& level = levels_[static_cast<size_t>(index)];
  level.capacity = static_cast<int64_t>(keys.size());
  ASSIGN_OR_RETURN(level.keys, context_->batch.TakeArray<uint64_t>(level.capacity));
  RETURN_IF_ERROR(CopyToDevice(level.keys, keys.data(), keys.size(), stream()));
  return stream().Synchronize();
}

}  // namespace voxserve
