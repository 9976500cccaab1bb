#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/device_copies.h"

namespace voxserve {
namespace {

// Sizes are rounded up to this, so that clouds of about the same size can take each other's memory.
constexpr int64_t kGrainBytes = int64_t{1} << 20;

int64_t RoundUp(int64_t bytes) { return (bytes + kGrainBytes - 1) / kGrainBytes * kGrainBytes; }

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCopies>> DeviceCopies::Create(DevicePool* pool, int64_t max_bytes) {
  ASSIGN_OR_RETURN(Stream stream, Stream::CreateOn(pool->device()));
  return std::unique_ptr<DeviceCopies>(new DeviceCopies(pool, std::move(stream), max_bytes));
}

// Makes the device current, since the members free memory of the device, on any thread.
DeviceCopies::~DeviceCopies() {
  if (const absl::Status status = pool_->MakeCurrent(); !status.ok()) {
    Log(LogLevel::kError, "copies on a GPU end on a broken device", {{"error", std::string(status.message())}});
  }
}

absl::StatusOr<DeviceCopies::Lease> DeviceCopies::Find(const Owner& owner, StreamView reader) {
  absl::MutexLock lock(&mutex_);
  const auto found = copies_.find(owner);
  if (found == copies_.end()) return Lease();
  RETURN_IF_ERROR(found->second->uploaded_.MakeStreamWait(reader));
  return found->second;
}

absl::StatusOr<DeviceCopies::Lease> DeviceCopies::Add(const Owner& owner, const char* pinned, int64_t bytes,
                                                      StreamView reader) {
  absl::MutexLock lock(&mutex_);
  if (const auto found = copies_.find(owner); found != copies_.end()) {  // another context has made the copy meanwhile
    RETURN_IF_ERROR(found->second->uploaded_.MakeStreamWait(reader));
    return found->second;
  }
  const std::shared_ptr<Copy> copy = TakeMemory(bytes);
  if (copy == nullptr) return Lease();
  const absl::Status queued = Upload(pinned, bytes, reader, *copy);
  if (!queued.ok()) {
    allocated_bytes_ -= copy->memory_.bytes();
    return queued;
  }
  copies_.emplace(owner, copy);
  return copy;
}

absl::Status DeviceCopies::Upload(const char* pinned, int64_t bytes, StreamView reader, Copy& copy) const {
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(copy.memory_.data(), pinned, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                       stream_.view().get()));
  RETURN_IF_ERROR(copy.uploaded_.Record(stream_.view()));
  return copy.uploaded_.MakeStreamWait(reader);
}

absl::Status DeviceCopies::Trim() {
  std::vector<std::shared_ptr<Copy>> idle;
  {
    absl::MutexLock lock(&mutex_);
    const auto first_idle = std::partition(unused_.begin(), unused_.end(),
                                           [](const std::shared_ptr<Copy>& copy) { return !copy->was_unused_; });
    idle.assign(std::make_move_iterator(first_idle), std::make_move_iterator(unused_.end()));
    unused_.erase(first_idle, unused_.end());
    for (const std::shared_ptr<Copy>& copy : idle) allocated_bytes_ -= copy->memory_.bytes();
    CollectUnused();
    for (const std::shared_ptr<Copy>& copy : unused_) copy->was_unused_ = true;
  }
  if (idle.empty()) return absl::OkStatus();
  idle.clear();                         // outside the lock, so that lookups need not wait
  return stream_.view().Synchronize();  // makes the pool return unused memory to the device
}

void DeviceCopies::Clear() {
  absl::MutexLock lock(&mutex_);
  copies_.clear();
  unused_.clear();
  allocated_bytes_ = 0;
}

int64_t DeviceCopies::allocated_bytes() const {
  absl::MutexLock lock(&mutex_);
  return allocated_bytes_;
}

std::shared_ptr<DeviceCopies::Copy> DeviceCopies::TakeMemory(int64_t bytes) {
  std::shared_ptr<Copy> copy = TakeUnused(bytes);
  if (copy == nullptr) {
    // Collecting is rare: in steady state each copy reuses the memory of an owner that has gone.
    CollectUnused();
    copy = TakeUnused(bytes);
  }
  if (copy != nullptr) return copy;
  const int64_t wanted = RoundUp(bytes);
  while (allocated_bytes_ + wanted > max_bytes_ && !unused_.empty()) {
    allocated_bytes_ -= unused_.back()->memory_.bytes();
    unused_.pop_back();
  }
  if (allocated_bytes_ + wanted > max_bytes_) return nullptr;
  absl::StatusOr<DeviceBuffer> memory = DeviceBuffer::Create(*pool_, wanted, stream_.view());
  absl::StatusOr<Event> uploaded = Event::Create();
  if (!memory.ok() || !uploaded.ok()) return nullptr;  // the caller's own upload will meet and report the same error
  copy = std::make_shared<Copy>();
  copy->memory_ = *std::move(memory);
  copy->uploaded_ = *std::move(uploaded);
  allocated_bytes_ += wanted;
  return copy;
}

std::shared_ptr<DeviceCopies::Copy> DeviceCopies::TakeUnused(int64_t bytes) {
  auto best = unused_.end();
  for (auto it = unused_.begin(); it != unused_.end(); ++it) {
    const int64_t there = (*it)->memory_.bytes();
    // Leaves memory that is much too large to larger copies.
    if (there < bytes || there > 2 * RoundUp(bytes)) continue;
    if (best == unused_.end() || there < (*best)->memory_.bytes()) best = it;
    if (there == RoundUp(bytes)) break;
  }
  if (best == unused_.end()) return nullptr;
  std::shared_ptr<Copy> copy = std::move(*best);
  copy->was_unused_ = false;
  unused_.erase(best);
  return copy;
}

void DeviceCopies::CollectUnused() {
  for (auto it = copies_.begin(); it != copies_.end();) {
    // A use count of one cannot rise: leases are given out under the lock, and only for owners that exist.
    if (!it->first.expired() || it->second.use_count() > 1) {
      ++it;
      continue;
    }
    unused_.push_back(std::move(it->second));
    it = copies_.erase(it);
  }
  std::atomic_thread_fence(std::memory_order_acquire);  // orders this after the last readers' accesses
}

}  // namespace voxserve
