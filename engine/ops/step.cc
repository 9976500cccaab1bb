#include "engine/ops/step.h"

#include "engine/ops/cpu_output_collector.h"
#include "engine/ops/cuda_output_collector.h"

namespace voxserve {

kernels::Rows StepContext::At(const BufferSlice& slice) const {
  if (slice.buffer < 0) return {};
  const auto index = static_cast<size_t>(slice.buffer);
  const Buffer& buffer = (*buffers)[index];
  char* const data = (*buffer_data)[index];
  return {.data = data == nullptr ? nullptr : data + slice.column * SizeOf(buffer.dtype),
          .dtype = buffer.dtype,
          .channels = slice.channels,
          .pitch = buffer.pitch,
          .capacity = buffer.NumRows(*num_sites, num_samples(), point_capacity()),
          .num_rows = buffer.level >= 0             ? DeviceNumSites(buffer.level)
                      : buffer.level == kPointLevel ? DeviceNumPoints()
                                                    : nullptr};
}

const int64_t* StepContext::DeviceNumSites(int level) const {
  return device_geometry == nullptr ? nullptr : device_geometry->device_num_sites(level);
}

const int64_t* StepContext::SampleBegin(const BufferSlice& slice) const {
  const int level = (*buffers)[static_cast<size_t>(slice.buffer)].level;
  return cuda() != nullptr ? device_geometry->level_sample_begin(level) : geometry->level_sample_begin(level);
}

const uint64_t* StepContext::Keys(int level) const {
  return cuda() != nullptr ? device_geometry->keys(level) : geometry->keys(level).data();
}

const int32_t* StepContext::RowOfPlace(int order) const {
  return cuda() != nullptr ? device_geometry->row_of_place(order) : geometry->row_of_place(order).data();
}

SpreadGroups StepContext::SpreadGroupsOf(int order) const {
  return cuda() != nullptr ? device_geometry->spread_groups(order) : geometry->spread_groups(order);
}

const int32_t* StepContext::PointToVoxel() const {
  return cuda() != nullptr ? device_geometry->point_to_voxel() : geometry->point_to_voxel.data();
}

const int32_t* StepContext::SortedPoints() const {
  return cuda() != nullptr ? device_geometry->sorted_points() : geometry->sorted_points.data();
}

const int64_t* StepContext::VoxelBegin() const {
  return cuda() != nullptr ? device_geometry->voxel_begin() : geometry->voxel_begin.data();
}

OutputCollector* StepContext::outputs() const {
  if (cpu_outputs != nullptr) return cpu_outputs;
  return cuda_outputs;
}

kernels::Epilogue FusedEpilogue::In(const StepContext& context) const {
  return {.bias = bias.data(), .residual = context.At(residual), .activation = activation};
}

}  // namespace voxserve
