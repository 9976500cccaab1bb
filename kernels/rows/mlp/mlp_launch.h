#pragma once

// The launchers of Mlp's kernels by the features' type, each in a file of its own. Mlp (mlp.cu) checks the params and
// chooses.

#include "kernels/rows/mlp/mlp.h"

namespace voxserve::kernels::cuda {

cudaError_t LaunchMlpHalf(const MlpShape& shape, const MlpParams& params, cudaStream_t stream);
cudaError_t LaunchMlpBfloat16(const MlpShape& shape, const MlpParams& params, cudaStream_t stream);

}  // namespace voxserve::kernels::cuda
