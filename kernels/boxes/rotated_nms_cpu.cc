#include <vector>

#include "kernels/boxes/box_overlap.h"
#include "kernels/boxes/rotated_nms.h"

namespace voxserve::kernels::cpu {
namespace {

// Returns the kept boxes of one input and sample, best first.
std::vector<const float*> KeptBoxes(const RotatedNmsParams& params, int32_t input, int32_t sample) {
  const NmsInput& in = params.inputs[static_cast<size_t>(input)];
  const float* const rows = in.boxes + int64_t{sample} * in.max_boxes * kBoxPitch;
  std::vector<const float*> kept;
  std::vector<float> kept_radii;
  for (int64_t i = 0; i < NmsReadRows(params, input); ++i) {
    const float* const box = rows + i * kBoxPitch;
    if (box[kBoxScore] == kNoBox || static_cast<int32_t>(kept.size()) == params.max_boxes_out) break;
    const float radius = RadiusFromAbove(box);
    bool stays = true;
    for (size_t k = 0; k < kept.size() && stays; ++k) {
      stays = !(MayOverlap(kept[k], kept_radii[k], box, radius) && IouFromAbove(kept[k], box) > params.iou_threshold);
    }
    if (!stays) continue;
    kept.push_back(box);
    kept_radii.push_back(radius);
  }
  return kept;
}

}  // namespace

void RotatedNms(const RotatedNmsParams& params, ThreadPool& pool) {
  const int64_t num_inputs = params.num_inputs;
  std::vector<std::vector<const float*>> kept(static_cast<size_t>(params.num_samples * num_inputs));
  pool.ParallelFor(static_cast<int64_t>(kept.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kept[static_cast<size_t>(i)] =
          KeptBoxes(params, static_cast<int32_t>(i % num_inputs), static_cast<int32_t>(i / num_inputs));
    }
  });
  for (int32_t sample = 0; sample < params.num_samples; ++sample) {
    float* row = params.boxes + int64_t{sample} * NmsRows(params) * kBoxPitch;
    float* const end = row + int64_t{NmsRows(params)} * kBoxPitch;
    for (int64_t input = 0; input < num_inputs; ++input) {
      for (const float* const box : kept[static_cast<size_t>(sample * num_inputs + input)]) {
        std::copy(box, box + kBoxColumns, row);
        row += kBoxPitch;
      }
    }
    WriteNoBoxes(row, end);
  }
}

}  // namespace voxserve::kernels::cpu
