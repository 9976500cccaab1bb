#pragma once

// VectorIsa is a vector instruction set of the CPU. Inner loops that gain from wide vectors are compiled once for each
// set, in files of their own (conv/fetch_on_demand_avx512.cc), and the set is chosen at run time.

#include <vector>

namespace voxserve::kernels::cpu {

enum class VectorIsa { kBaseline, kAvx2, kAvx512 };  // kBaseline is the set that the whole build uses

// Returns the sets that both this machine and this build have, the widest first; never empty.
const std::vector<VectorIsa>& SupportedVectorIsas();

}  // namespace voxserve::kernels::cpu
