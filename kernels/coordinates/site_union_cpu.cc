#include <algorithm>

#include "kernels/coordinates/site_union.h"

namespace voxserve::kernels::cpu {

void SiteUnion(const SiteUnionParams& params) {
  const uint64_t* const end = std::set_union(params.a_keys, params.a_keys + params.num_a, params.b_keys,
                                             params.b_keys + params.num_b, params.out_keys);
  *params.num_out = end - params.out_keys;
}

}  // namespace voxserve::kernels::cpu
