#pragma once

// Gives tests a cuda::Gemm, which computes matrix products on a GPU with cuBLASLt.

#include <memory>

#include "kernels/core/gemm_cuda.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels {

// Owns a Gemm on TestStream() and its workspace. The destructor waits for the stream, so that no product still uses the
// workspace.
class TestGemm {
 public:
  TestGemm() : workspace_(support::Device::kCuda, cuda::Gemm::kWorkspaceBytes) {
    support::ExpectCudaSuccess(cuda::Gemm::Create(support::TestStream(), workspace_.data(), &gemm_));
  }
  ~TestGemm() { support::Synchronize(); }
  cuda::Gemm& operator*() const { return *gemm_; }

 private:
  support::DeviceArray<char> workspace_;
  std::unique_ptr<cuda::Gemm> gemm_;
};

}  // namespace voxserve::kernels
