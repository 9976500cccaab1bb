#pragma once

// Computes matrix products on a GPU, for tests.

#include <memory>

#include "kernels/core/gemm_cuda.h"
#include "tests/support/test_device.h"

namespace voxserve::kernels {

// A Gemm with its workspace.
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
