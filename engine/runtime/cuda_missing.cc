// A build without CUDA makes no stream, no device memory and no GEMM handle; these stand in for what the linker asks
// for on behalf of members that stay empty.

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
