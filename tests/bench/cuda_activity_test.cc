// Tests on a GPU that CudaActivity counts the kernels, copies, waits and allocations of a small program.

#include "tests/bench/cuda_activity.h"

#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>

#include <vector>

#include "gtest/gtest.h"

namespace voxserve::bench::cuda_activity_test {
namespace {

TEST(CudaActivityTest, CountsWhatAProgramDoes) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) GTEST_SKIP() << "no CUDA device here";
  auto activity = CudaActivity::Create();
  ASSERT_TRUE(activity.ok()) << activity.status();

  constexpr size_t kBytes = size_t{1} << 20;
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  std::vector<char> host(kBytes);
  ASSERT_TRUE((*activity)->Start().ok());
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, kBytes), cudaSuccess);
  nvtxRangePushA("Voxelize");
  ASSERT_EQ(cudaMemsetAsync(device, 1, kBytes, stream), cudaSuccess);
  nvtxRangePop();
  ASSERT_EQ(cudaMemsetAsync(device, 2, kBytes, stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(device, host.data(), kBytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(host.data(), device, kBytes / 2, cudaMemcpyDeviceToHost), cudaSuccess);
  ASSERT_EQ(cudaFree(device), cudaSuccess);
  const auto summary = (*activity)->Stop();
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->dropped_records, 0);
  EXPECT_EQ(summary->memsets, 2);
  EXPECT_EQ(summary->copies_to_device, 1);
  EXPECT_EQ(summary->bytes_to_device, static_cast<int64_t>(kBytes));
  EXPECT_EQ(summary->copies_to_host, 1);
  EXPECT_EQ(summary->bytes_to_host, static_cast<int64_t>(kBytes / 2));
  EXPECT_EQ(summary->synchronizations, 2);  // one of the stream, one by the blocking copy
  EXPECT_EQ(summary->device_allocations, 1);
  EXPECT_EQ(summary->device_frees, 1);
  EXPECT_GT(summary->busy_us, 0);
  EXPECT_GE(summary->span_us, summary->busy_us);
  // One memset is inside a range whose name tells its stage.
  EXPECT_EQ(summary->stage_us.count("voxelize"), 1U);
  EXPECT_EQ(summary->stage_us.count("other"), 1U);

  // A second measurement starts from zero and does not count what happened before it.
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_TRUE((*activity)->Start().ok());
  const auto nothing = (*activity)->Stop();
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_TRUE(nothing->calls.empty());
  EXPECT_EQ(nothing->busy_us, 0);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace voxserve::bench::cuda_activity_test
