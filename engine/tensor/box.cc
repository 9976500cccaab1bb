#include "engine/tensor/box.h"

#include "kernels/boxes/box_rows.h"

namespace voxserve {

Box BoxOf(const float* row) {
  return {.class_id = static_cast<int32_t>(row[kernels::kBoxClass]),
          .score = row[kernels::kBoxScore],
          .x = row[kernels::kBoxX],
          .y = row[kernels::kBoxY],
          .z = row[kernels::kBoxZ],
          .length = row[kernels::kBoxLength],
          .width = row[kernels::kBoxWidth],
          .height = row[kernels::kBoxHeight],
          .yaw = row[kernels::kBoxYaw],
          .velocity_x = row[kernels::kBoxVelocityX],
          .velocity_y = row[kernels::kBoxVelocityY],
          .query = static_cast<int32_t>(row[kernels::kBoxQuery]) - 1};
}

}  // namespace voxserve
