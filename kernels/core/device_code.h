#pragma once

// Whether this build's kernels run on a device, and which code of theirs.

namespace voxserve::kernels::cuda {

inline constexpr int kMaxDevices = 64;  // of which answers are remembered

// False where the build holds neither machine code nor PTX for the device, or the device does not let itself be used.
// Starts CUDA's context on the device, which takes some of its memory.
bool HasCodeFor(int device);

// The compute capability that the code was made for which kernels run on the current device: 80 of 8.0, as
// __CUDA_ARCH__ / 10; 0 where there is none. It is below the device's own where the build knows older GPUs alone, whose
// PTX newer ones run too: then kernels have nothing that they guard by a newer architecture.
int CodeVersion();

inline constexpr int kTensorCoreCode = 80;  // from here on there are the instructions of tensor_cores.cuh
// Here there are those of warp_group_products.cuh: it is 90a, since kernels/cuda.cmake refuses 90.
inline constexpr int kWarpGroupCode = 90;

}  // namespace voxserve::kernels::cuda
