#include "engine/compiler/buffer_placement.h"

#include <algorithm>

#include "engine/runtime/aligned_bytes.h"

namespace voxserve {
namespace {

bool AreBothAlive(const Buffer& a, const Buffer& b) {
  return a.first_step <= b.last_step && b.first_step <= a.last_step;
}

}  // namespace

void BufferPlaces::SetData(char* block, std::vector<char*>& buffer_data) const {
  for (size_t i = 0; i < buffers.size(); ++i) buffer_data[buffers[i]] = block + begin[i];
}

BufferPlaces PlaceBuffers(const Program& program, const ProgramSegment& segment, const std::vector<int64_t>& num_sites,
                          int64_t num_samples, int64_t num_points) {
  BufferPlaces places;
  std::vector<int64_t> bytes(program.buffers.size());
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.first_step < segment.first_step || buffer.first_step >= segment.end_step) continue;
    places.buffers.push_back(i);
    bytes[i] = AlignedBytes(buffer.NumRows(num_sites, num_samples, num_points) * buffer.pitch * SizeOf(buffer.dtype));
  }
  std::stable_sort(places.buffers.begin(), places.buffers.end(),
                   [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  // A program has about 60 buffers, so quadratic time is cheap.
  std::vector<size_t> placed;  // ascending by begin
  std::vector<int64_t> begin(program.buffers.size());
  for (const size_t i : places.buffers) {
    int64_t at = 0;
    for (const size_t other : placed) {
      if (!AreBothAlive(program.buffers[i], program.buffers[other])) continue;
      if (at + bytes[i] <= begin[other]) break;
      at = std::max(at, begin[other] + bytes[other]);
    }
    begin[i] = at;
    places.begin.push_back(at);
    places.bytes = std::max(places.bytes, at + bytes[i]);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), i, [&](size_t a, size_t b) { return begin[a] < begin[b]; }), i);
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
