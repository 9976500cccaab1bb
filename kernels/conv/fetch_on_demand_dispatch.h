#pragma once

// Fetch-on-demand with a vector instruction set that the caller chooses. The functions of fetch_on_demand.h choose the
// widest set. Tests use this header to check that all sets give the same results, and linear layers
// (kernels/rows/linear_cpu.cc) use the tiles of the widest one.

#include <vector>

#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/fetch_on_demand_isa.h"

namespace voxserve::kernels::cpu {

// Returns the sets that both this machine and this build have, the widest first; never empty.
const std::vector<const Isa*>& SupportedIsas();

// These functions do the same as those of fetch_on_demand.h, with the set `isa`. Weights must be packed with the same
// set that reads them.
std::vector<float> PackWeights(const Isa& isa, const float* weights, int32_t num_offsets, int32_t in_channels,
                               int32_t out_channels);
void FetchOnDemand(const Isa& isa, const FetchOnDemandParams& params, ThreadPool& pool);

}  // namespace voxserve::kernels::cpu
