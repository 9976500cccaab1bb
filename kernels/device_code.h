#pragma once

// Whether this build's kernels run on a device.

namespace voxserve::kernels::cuda {

// False where the build holds neither machine code nor PTX for the device. Makes no other use of it.
bool HasCodeFor(int device);

}  // namespace voxserve::kernels::cuda
