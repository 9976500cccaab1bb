#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/fault.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/device_pool.h"

namespace voxserve {
namespace {

int64_t RoundUp(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

absl::StatusOr<std::unique_ptr<DevicePool>> DevicePool::Create(const Options& options) {
  auto pool = std::unique_ptr<DevicePool>(new DevicePool(options));
  RETURN_IF_CUDA_ERROR(cudaSetDevice(options.device));
  if (options.limit_bytes == 0) {
    size_t free_bytes = 0, total_bytes = 0;
    RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
    pool->options_.limit_bytes = static_cast<int64_t>(total_bytes);
  }
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = options.device;
  RETURN_IF_CUDA_ERROR(cudaMemPoolCreate(&pool->pool_, &properties));
  return pool;
}

DevicePool::~DevicePool() {
  if (pool_ == nullptr) return;
  if (used_bytes_ != 0) Log(LogLevel::kError, "device memory was not freed", {{"bytes", used_bytes_.load()}});
  if (const cudaError_t error = cudaMemPoolDestroy(pool_); error != cudaSuccess) {
    Log(LogLevel::kError, "cudaMemPoolDestroy failed", {{"error", cudaGetErrorName(error)}});
  }
}

absl::Status DevicePool::MakeCurrent() const {
  RETURN_IF_CUDA_ERROR(cudaSetDevice(options_.device));
  return absl::OkStatus();
}

absl::StatusOr<void*> DevicePool::Allocate(int64_t bytes, StreamView stream) {
  // Memory that is allocated while work is captured would belong to the CUDA graph and be freed with it.
  ASSIGN_OR_RETURN(const bool is_captured, stream.IsCaptured());
  if (is_captured) {
    return WithReason(absl::InternalError("device memory is not allocated while a stream's work is captured"),
                      error_reason::kInternal);
  }
  // Counts only what fits, so that a refused allocation does not make others fail.
  int64_t used_before = used_bytes_;
  bool fits = used_before + bytes <= options_.limit_bytes && !FaultAt(FaultSite::kDeviceMemory);
  while (fits && !used_bytes_.compare_exchange_weak(used_before, used_before + bytes)) {
    fits = used_before + bytes <= options_.limit_bytes;
  }
  cudaError_t error = cudaErrorMemoryAllocation;
  void* data = nullptr;
  if (fits) {
    error = cudaMallocFromPoolAsync(&data, static_cast<size_t>(bytes), pool_, stream.get());
    if (error == cudaSuccess) return data;
    used_bytes_ -= bytes;
  }
  if (error != cudaErrorMemoryAllocation) return CudaStatus(error, "cudaMallocFromPoolAsync");
  cudaGetLastError();
  return OutOfMemoryError(absl::StrCat("no room for ", bytes, " bytes on cuda:", options_.device, ", where ",
                                       used_before, " of ", options_.limit_bytes, " bytes are in use"));
}

void DevicePool::Free(void* data, int64_t bytes, StreamView stream) {
  if (const cudaError_t error = cudaFreeAsync(data, stream.get()); error != cudaSuccess) {
    Log(LogLevel::kError, "cudaFreeAsync failed", {{"error", cudaGetErrorName(error)}, {"bytes", bytes}});
  }
  used_bytes_ -= bytes;
}

absl::StatusOr<int64_t> DevicePool::reserved_bytes() const {
  uint64_t reserved = 0;
  RETURN_IF_CUDA_ERROR(cudaMemPoolGetAttribute(pool_, cudaMemPoolAttrReservedMemCurrent, &reserved));
  return static_cast<int64_t>(reserved);
}

absl::StatusOr<DeviceBuffer> DeviceBuffer::Create(DevicePool& pool, int64_t bytes, StreamView stream) {
  DeviceBuffer buffer;
  if (bytes == 0) return buffer;
  ASSIGN_OR_RETURN(void* data, pool.Allocate(bytes, stream));
  buffer.pool_ = &pool;
  buffer.stream_ = stream;
  buffer.data_ = static_cast<char*>(data);
  buffer.bytes_ = bytes;
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(stream_, other.stream_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(id_, other.id_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) pool_->Free(data_, bytes_, stream_);
}

absl::StatusOr<char*> DeviceArena::Take(int64_t bytes) {
  const int64_t wanted = AlignedBytes(std::max<int64_t>(bytes, 1));
  if (blocks_.empty() || used_ + wanted > blocks_.back().bytes()) {
    ASSIGN_OR_RETURN(DeviceBuffer block, DeviceBuffer::Create(*pool_, RoundUp(wanted, kBlockBytes), stream_));
    blocks_.push_back(std::move(block));
    used_ = 0;
  }
  char* const data = blocks_.back().data() + used_;
  used_ += wanted;
  taken_ += wanted;
  most_ = std::max(most_, taken_);
  return data;
}

void DeviceArena::ReturnTo(const Mark& mark) {
  // Keeps the first block, even if the mark is older than the block.
  const size_t num_blocks = std::max<size_t>(mark.num_blocks, 1);
  if (blocks_.size() > num_blocks) blocks_.erase(blocks_.begin() + static_cast<int64_t>(num_blocks), blocks_.end());
  used_ = mark.used;
  taken_ = mark.taken;
}

void DeviceArena::Reset() {
  const int64_t most = std::exchange(most_, 0);
  ReturnTo(Mark());
  // ReturnTo may have left only a first block that is too small.
  if (most > capacity()) MakeOneBlock(most);
}

void DeviceArena::Reserve(int64_t bytes) {
  if (taken_ == 0 && bytes > capacity()) MakeOneBlock(bytes);
}

void DeviceArena::MakeOneBlock(int64_t bytes) {
  // Adds an eighth, so that a slowly growing series of batches does not allocate each time.
  const int64_t total = RoundUp(bytes + bytes / 8, kBlockBytes);
  Release();
  // Waiting makes the pool return unused memory to the device; otherwise it would hold the old and the new block.
  if (const absl::Status status = stream_.Synchronize(); !status.ok()) return;  // the next call reports the error
  // If the block does not fit the pool now, the next Take tries again, and reports an error if it still does not fit.
  if (absl::StatusOr<DeviceBuffer> block = DeviceBuffer::Create(*pool_, total, stream_); block.ok()) {
    blocks_.push_back(*std::move(block));
  }
}

void DeviceArena::Release() {
  blocks_.clear();
  used_ = taken_ = most_ = 0;
}

int64_t DeviceArena::capacity() const {
  int64_t bytes = 0;
  for (const DeviceBuffer& block : blocks_) bytes += block.bytes();
  return bytes;
}

}  // namespace voxserve
