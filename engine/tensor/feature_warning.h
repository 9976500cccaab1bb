#pragma once

// A FeatureWarning says that many values of a cloud's field are beyond the range that the model states for a feature
// (Feature.range in proto/voxserve/model/v1/model.proto). The usual cause is another unit. The cloud is run all the
// same.

#include <cstdint>
#include <string>

namespace voxserve {

// The values that a network was trained on, in the feature's canonical unit (m, 0..1, s). low < high.
struct ValueRange {
  float low = 0;
  float high = 1;
};

// All values are in the feature's canonical unit.
struct FeatureWarning {
  std::string feature;  // the name of the model's feature and of the cloud's field
  ValueRange range;     // of the model
  float smallest = 0;  // of the values that were looked at
  float largest = 0;
  int64_t num_checked = 0;  // values that were looked at: at most a few thousand, spread over the cloud
  int64_t num_outside = 0;  // those of them that are outside
};

}  // namespace voxserve
