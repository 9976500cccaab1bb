// Stand-ins for a build without CUDA. Such a build never creates a stream, device memory or a GEMM handle, but classes
// have (empty) members of these types, whose destructors the linker needs.

#include "kernels/core/cuda_stream.h"
#if !VOXSERVE_CUDA

#include "engine/runtime/device_copies.h"
#include "engine/runtime/execution_context.h"

namespace voxserve {

Stream::~Stream() = default;
Event::~Event() = default;
DevicePool::~DevicePool() = default;
DeviceCopies::~DeviceCopies() = default;
CudaContext::~CudaContext() = default;
DeviceBuffer::~DeviceBuffer() = default;
DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&&) noexcept { return *this; }

namespace kernels::cuda {
Gemm::~Gemm() = default;
}  // namespace kernels::cuda

}  // namespace voxserve

#endif
