#pragma once

// Group attention with a vector instruction set that the caller chooses. GroupAttention of group_attention.h chooses
// the widest set; tests use this header to check every set.

#include "kernels/conv/fetch_on_demand_dispatch.h"
#include "kernels/rows/attention/group_attention.h"

namespace voxserve::kernels::cpu {

// isa: one of SupportedIsas().
void GroupAttention(const Isa& isa, const GroupAttentionParams& params, ThreadPool& pool);

}  // namespace voxserve::kernels::cpu
