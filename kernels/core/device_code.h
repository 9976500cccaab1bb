#pragma once

// These functions say whether this build's kernels run on a device, for which architecture the kernels were compiled,
// and how many multiprocessors the device has. Any thread may call them.

namespace voxserve::kernels::cuda {

inline constexpr int kMaxDevices = 64;  // the functions cache answers for devices below this number

// Returns true if the build has machine code or PTX for the device and the device can be used. The call starts CUDA's
// context on the device, which takes some of its memory.
bool HasCodeFor(int device);

// Returns the architecture for which the kernels that run on the current device were compiled, as __CUDA_ARCH__ / 10
// (80 means compute capability 8.0); 0 if there is no code. If the build only knows GPUs older than the device, the
// device runs PTX of an older architecture. The answer is then below the device's own architecture, and code that is
// guarded by a newer architecture is missing.
int CodeVersion();

// Returns the number of the current device's multiprocessors; 0 if there is no GPU.
int NumSms();

inline constexpr int kTensorCoreCode = 80;  // from this version on, the instructions of tensor_cores.cuh exist
// With this version, the instructions of warp_group_products.cuh exist. 90 always means 90a here, since
// kernels/cuda.cmake refuses plain 90.
inline constexpr int kWarpGroupCode = 90;

}  // namespace voxserve::kernels::cuda
