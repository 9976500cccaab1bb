#pragma once

// Isa is the interface between fetch_on_demand_cpu.cc and fetch_on_demand_tile.h, which is compiled once for each
// vector instruction set.

#include <cstdint>

namespace voxserve::kernels::cpu {

// The pairs of one kernel offset whose output rows are in one block, and the matrices of the convolution. Pitches are
// in floats.
struct AccumulateArgs {
  int64_t num_pairs;
  const int32_t* in_rows;
  const int32_t* out_rows;
  const float* in;
  int64_t in_pitch;
  int32_t in_channels;
  const float* weights;  // this offset's panels (PackWeights in fetch_on_demand.h)
  float* out;
  int64_t out_pitch;
  int32_t out_channels;
};

// A vector instruction set: its name, the floats of a vector, and the functions that are compiled for it.
struct Isa {
  const char* name;
  int32_t vector_floats;
  // Returns how many vectors wide the next panel of weights is, if num_vectors > 0 whole vectors of output channels are
  // left.
  int32_t (*panel_vectors)(int32_t num_vectors);
  void (*accumulate)(const AccumulateArgs&);  // out[out_row] += in[in_row] * weights for each pair
};

namespace baseline {
extern const Isa kIsa;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Isa kIsa;
}
namespace avx512 {
extern const Isa kIsa;
}
#elif defined(__aarch64__)
namespace neon {
extern const Isa kIsa;
}
#endif

}  // namespace voxserve::kernels::cpu
