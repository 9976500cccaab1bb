#pragma once

// Fetch-on-demand by a chosen vector instruction set. fetch_on_demand.h takes the widest; this header is for the tests,
// which hold every set that the machine has to the same answers.

#include <vector>

#include "kernels/conv/fetch_on_demand.h"
#include "kernels/conv/fetch_on_demand_isa.h"

namespace voxserve::kernels::cpu {

// What this machine and this build share, the widest first; never empty.
const std::vector<const Isa*>& SupportedIsas();

// As in fetch_on_demand.h. Weights are read by the set that they were packed for.
std::vector<float> PackWeights(const Isa& isa, const float* weights, int32_t num_offsets, int32_t in_channels,
                               int32_t out_channels);
void FetchOnDemand(const Isa& isa, const FetchOnDemandParams& params, ThreadPool& pool);

}  // namespace voxserve::kernels::cpu
