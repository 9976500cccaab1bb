#pragma once

// RunLinear runs kernels/rows/linear.h on any device.

#include <memory>
#include <vector>

#include "kernels/conv/fetch_on_demand.h"
#include "kernels/core/gemm_cuda.h"
#include "kernels/core/thread_pool.h"
#include "kernels/rows/linear.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels {

// params.weights: [in.channels, out.channels] on the device, also for the CPU, for which this function packs them.
inline void RunLinear(support::Device device, LinearParams params) {
  if (device == support::Device::kCpu) {
    ThreadPool pool(2);
    const std::vector<float> packed = cpu::PackWeights(static_cast<const float*>(params.weights), /*num_offsets=*/1,
                                                       params.in.channels, params.out.channels);
    params.weights = packed.data();
    cpu::Linear(params, pool);
    return;
  }
  if constexpr (kHasCuda) {
    // The Gemm is never destroyed, because CUDA shuts down before the program's static objects are destroyed.
    static cuda::Gemm* const gemm = [] {
      auto* const workspace = new support::DeviceArray<char>(support::Device::kCuda, cuda::Gemm::kWorkspaceBytes);
      std::unique_ptr<cuda::Gemm> created;
      support::ExpectCudaSuccess(cuda::Gemm::Create(support::TestStream(), workspace->data(), &created));
      return created.release();
    }();
    support::ExpectCudaSuccess(cuda::Linear(params, *gemm, support::TestStream()));
  }
}

}  // namespace voxserve::kernels
