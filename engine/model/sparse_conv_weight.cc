#include "engine/model/sparse_conv_weight.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

namespace voxserve {

HostTensorPtr ArrangeWeight(HostTensorPtr weight, const std::vector<int32_t>& stored_cells, int groups) {
  if (groups == 1 && std::is_sorted(stored_cells.begin(), stored_cells.end())) return weight;
  const auto num_cells = static_cast<size_t>(weight->shape[0]);
  const auto in_a_group = static_cast<size_t>(weight->shape[1]);
  const auto out_channels = static_cast<size_t>(weight->shape[2]);
  const auto num_groups = static_cast<size_t>(groups);
  const size_t out_a_group = out_channels / num_groups;
  HostTensor arranged{{weight->shape[0], weight->shape[1] * groups, weight->shape[2]}, {}};
  if (weight->values.empty()) return std::make_shared<const HostTensor>(std::move(arranged));
  arranged.values.resize(num_cells * in_a_group * num_groups * out_channels, 0.0F);
  for (size_t k = 0; k < num_cells; ++k) {
    const size_t stored = stored_cells.empty() ? k : static_cast<size_t>(stored_cells[k]);
    const float* from = weight->values.data() + stored * in_a_group * out_channels;
    float* to = arranged.values.data() + k * in_a_group * num_groups * out_channels;
    for (size_t group = 0; group < num_groups; ++group) {
      for (size_t in = 0; in < in_a_group; ++in) {
        std::copy_n(from + in * out_channels + group * out_a_group, out_a_group,
                    to + (group * in_a_group + in) * out_channels + group * out_a_group);
      }
    }
  }
  return std::make_shared<const HostTensor>(std::move(arranged));
}

}  // namespace voxserve
