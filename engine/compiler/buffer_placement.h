#pragma once

// Where the buffers of a program lie in memory, once the sizes of a batch are known; and what samples take of it
// before they are.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/compiler/program.h"

namespace voxserve {

// Where the buffers of a segment, those that its steps are the first to touch, lie in a block of memory of their own.
struct BufferPlaces {
  int64_t bytes = 0;  // of the block
  std::vector<size_t> buffers;
  std::vector<int64_t> begin;  // of each of them, in bytes

  // Sets their entries of StepContext::buffer_data.
  void SetData(char* block, std::vector<char*>& buffer_data) const;
};

// The largest first, each at the lowest place where no buffer lies that is alive with it (greedy by size: Pisarchyk and
// Lee, Efficient Memory Management for Deep Neural Net Inference, 2020). For the U-Nets that we know the block is as
// large as what is alive at once.
BufferPlaces PlaceBuffers(const Program& program, const ProgramSegment& segment, const std::vector<int64_t>& num_sites,
                          int64_t num_samples, int64_t num_points);

// What the feature pass takes of its memory for so many samples without a point: buffers, and on a GPU the steps'
// scratch and outputs.
int64_t BytesOfSamples(const Program& program, int64_t num_samples, bool on_cuda);

}  // namespace voxserve
