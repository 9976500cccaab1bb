#include <vector>

#include "kernels/boxes/box_overlap.h"
#include "kernels/boxes/rotated_nms.h"

namespace voxserve::kernels::cpu {
namespace {

// Returns the kept boxes of one list and sample, best first.
std::vector<const float*> KeptBoxes(const RotatedNmsParams& params, const NmsList& list, int32_t sample) {
  const NmsInput& in = params.inputs[static_cast<size_t>(list.input)];
  const float* const rows = in.boxes + int64_t{sample} * in.max_boxes * kBoxPitch;
  std::vector<const float*> kept;
  std::vector<float> kept_radii;
  int32_t num_read = 0;
  for (int64_t i = 0; i < in.max_boxes && num_read < list.num_read; ++i) {
    const float* const box = rows + i * kBoxPitch;
    if (box[kBoxScore] == kNoBox || static_cast<int32_t>(kept.size()) == list.num_kept) break;
    if (list.class_id >= 0 && box[kBoxClass] != static_cast<float>(list.class_id)) continue;
    ++num_read;
    const float radius = RadiusFromAbove(box);
    bool stays = true;
    for (size_t k = 0; k < kept.size() && stays; ++k) {
      stays = !(MayOverlap(kept[k], kept_radii[k], box, radius) && IouFromAbove(kept[k], box) > list.iou_threshold);
    }
    if (!stays) continue;
    kept.push_back(box);
    kept_radii.push_back(radius);
  }
  return kept;
}

}  // namespace

void RotatedNms(const RotatedNmsParams& params, ThreadPool& pool) {
  const int64_t num_lists = NumNmsLists(params);
  std::vector<std::vector<const float*>> kept(static_cast<size_t>(params.num_samples * num_lists));
  pool.ParallelFor(static_cast<int64_t>(kept.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const NmsList list = NmsListAt(params, static_cast<int32_t>(i % num_lists));
      kept[static_cast<size_t>(i)] = KeptBoxes(params, list, static_cast<int32_t>(i / num_lists));
    }
  });
  for (int32_t sample = 0; sample < params.num_samples; ++sample) {
    float* row = params.boxes + int64_t{sample} * NmsRows(params) * kBoxPitch;
    float* const end = row + int64_t{NmsRows(params)} * kBoxPitch;
    for (int64_t list = 0; list < num_lists; ++list) {
      for (const float* const box : kept[static_cast<size_t>(sample * num_lists + list)]) {
        std::copy(box, box + kBoxColumns, row);
        row += kBoxPitch;
      }
    }
    WriteNoBoxes(row, end);
  }
}

}  // namespace voxserve::kernels::cpu
