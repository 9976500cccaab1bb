#pragma once

// Whether this build's kernels run on a device, and which code of theirs.

namespace voxserve::kernels::cuda {

inline constexpr int kMaxDevices = 64;  // of which answers are remembered

// False where the build holds neither machine code nor PTX for the device, or the device does not let itself be used.
// Starts CUDA's context on the device, which takes some of its memory.
bool HasCodeFor(int device);

// The architecture that the code was made for by which kernels run on the current device: __CUDA_ARCH__ / 10, so 80 is
// compute capability 8.0; 0 where there is no code. It is below the device's own where the build knows older GPUs
// alone: newer ones run their PTX, and kernels have nothing there that they guard by a newer architecture.
int CodeVersion();

inline constexpr int kTensorCoreCode = 80;  // from here on there are the instructions of tensor_cores.cuh
// Here there are those of warp_group_products.cuh: it is 90a, since kernels/cuda.cmake refuses 90.
inline constexpr int kWarpGroupCode = 90;

}  // namespace voxserve::kernels::cuda
