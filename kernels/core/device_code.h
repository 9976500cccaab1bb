#pragma once

// Says whether this build's kernels run on a device, for which architecture they were compiled, and how many
// multiprocessors run them.

namespace voxserve::kernels::cuda {

inline constexpr int kMaxDevices = 64;  // answers are remembered for devices below this number

// Returns false if the build has neither machine code nor PTX for the device, or if the device cannot be used. The call
// starts CUDA's context on the device, which takes some of its memory.
bool HasCodeFor(int device);

// Returns the architecture for which the kernels that run on the current device were compiled: __CUDA_ARCH__ / 10, so
// 80 means compute capability 8.0; 0 if there is no code. It is below the device's own architecture if the build only
// knows older GPUs. The device then runs PTX of that older architecture, in which code guarded by a newer architecture
// is missing.
int CodeVersion();

// Returns the number of the current device's multiprocessors; 0 if there is no GPU.
int NumSms();

inline constexpr int kTensorCoreCode = 80;  // from this version on, the instructions of tensor_cores.cuh exist
// With this version, the instructions of warp_group_products.cuh exist: it means 90a, since kernels/cuda.cmake refuses
// 90.
inline constexpr int kWarpGroupCode = 90;

}  // namespace voxserve::kernels::cuda
