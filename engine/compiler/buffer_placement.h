#pragma once

// PlaceBuffers places the buffers of a program in memory once the sizes of a batch are known. BytesOfSamples computes
// the part of this memory that depends only on the number of samples.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/compiler/program.h"

namespace voxserve {

// The places of a segment's buffers in one block of memory. A buffer belongs to the segment that first touches it.
struct BufferPlaces {
  int64_t bytes = 0;  // size of the block
  std::vector<size_t> buffers;
  std::vector<int64_t> begin;  // [buffers] offset of each in the block, bytes

  // Sets the entries of `buffers` in buffer_data (StepContext::buffer_data) to addresses in the block.
  void SetData(char* block, std::vector<char*>& buffer_data) const;
};

// Places the buffers of a segment, the largest first. Each buffer gets the lowest offset at which it does not overlap a
// placed buffer that is alive at the same time (greedy by size: Pisarchyk and Lee, Efficient Memory Management for Deep
// Neural Net Inference, 2020). For the U-Nets that we know, the block is as small as possible: as large as the buffers
// that are alive at the same time. num_sites: by level.
BufferPlaces PlaceBuffers(const Program& program, const ProgramSegment& segment, const std::vector<int64_t>& num_sites,
                          int64_t num_samples, int64_t num_points);

// Returns the bytes that the feature pass takes for num_samples samples that have no points: buffers, and on a GPU also
// the steps' scratch memory and outputs.
int64_t BytesOfSamples(const Program& program, int64_t num_samples, bool on_cuda);

}  // namespace voxserve
