#include "engine/compiler/buffer_placement.h"

#include <algorithm>

#include "engine/runtime/aligned_bytes.h"

namespace voxserve {

void BufferPlaces::SetData(char* block, std::vector<char*>& buffer_data) const {
  for (size_t i = 0; i < buffers.size(); ++i) buffer_data[buffers[i]] = block + begin[i];
}

BufferPlaces PlaceBuffers(const Program& program, const ProgramSegment& segment, const std::vector<int64_t>& num_sites,
                          int64_t num_samples, int64_t num_points) {
  // First fit by first use: 60 buffers or so, so the square of it is nothing.
  BufferPlaces places;
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const int first_step = program.buffers[i].first_step;
    if (first_step >= segment.first_step && first_step < segment.end_step) places.buffers.push_back(i);
  }
  std::stable_sort(places.buffers.begin(), places.buffers.end(),
                   [&](size_t a, size_t b) { return program.buffers[a].first_step < program.buffers[b].first_step; });
  std::vector<int64_t> bytes(places.buffers.size());
  places.begin.assign(places.buffers.size(), 0);
  std::vector<size_t> placed;  // ascending by begin
  for (size_t i = 0; i < places.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[places.buffers[i]];
    const int64_t wanted = buffer.NumRows(num_sites, num_samples, num_points) * buffer.pitch * SizeOf(buffer.dtype);
    bytes[i] = AlignedBytes(wanted);
    int64_t at = 0;
    for (const size_t other : placed) {
      if (program.buffers[places.buffers[other]].last_step < buffer.first_step) continue;
      if (at + bytes[i] <= places.begin[other]) break;
      at = std::max(at, places.begin[other] + bytes[other]);
    }
    places.begin[i] = at;
    places.bytes = std::max(places.bytes, at + bytes[i]);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return places.begin[a] < places.begin[b]; }),
                  i);
  }
  return places;
}

int64_t BytesOfSamples(const Program& program, int64_t num_samples, bool on_cuda) {
  const std::vector<int64_t> no_sites(program.levels.size(), 0);
  const std::vector<int64_t> no_points(static_cast<size_t>(num_samples) + 1, 0);
  const std::vector<char*> no_memory(program.buffers.size());
  const StepContext context{
      .num_sites = &no_sites, .buffers = &program.buffers, .buffer_data = &no_memory, .point_begin = &no_points};
  int64_t bytes = 0;
  for (const ProgramSegment& segment : program.segments) {
    bytes += PlaceBuffers(program, segment, no_sites, num_samples, /*num_points=*/0).bytes;
    if (!on_cuda) continue;
    size_t scratch_bytes = 0;
    for (int i = segment.first_step; i < segment.end_step; ++i) {
      const Step& step = *program.steps[static_cast<size_t>(i)];
      if (step.has_scratch_of_samples()) scratch_bytes = std::max(scratch_bytes, step.ScratchBytes(context));
      bytes += step.OutputBytes(context);
    }
    bytes += AlignedBytes(static_cast<int64_t>(scratch_bytes));
  }
  return bytes;
}

}  // namespace voxserve
