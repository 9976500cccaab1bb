#pragma once

// Whether this build's kernels run on a device.

namespace voxserve::kernels::cuda {

// False where the build holds neither machine code nor PTX for the device, or the device does not let itself be used.
// Starts CUDA's context on the device, which takes some of its memory.
bool HasCodeFor(int device);

}  // namespace voxserve::kernels::cuda
