#include "engine/runtime/pinned_pool.h"

#include <bit>
#include <string>
#include <utility>

#include "engine/base/logging.h"
#include "engine/base/status_macros.h"

namespace voxserve {

std::shared_ptr<PinnedPool> PinnedPool::Create(Options options) {
  return std::shared_ptr<PinnedPool>(new PinnedPool(std::move(options)));
}

PinnedPool::PinnedPool(Options options) : options_(std::move(options)) {
  for (size_t i = 0; i < kNumSizes; ++i) shelves_[i].buffer_bytes = kMinBytes << i;
}

PinnedPool::~PinnedPool() {
  for (const Shelf& shelf : shelves_) {
    for (char* const data : shelf.ready) options_.source.free(data);
  }
}

absl::StatusOr<HostBuffer> PinnedPool::Take(int64_t bytes, BufferLife life) {
  if (bytes < kMinBytes || bytes > kMaxBytes) return HostBuffer::Create(bytes);
  const bool is_of_stream = life == BufferLife::kStream;
  HostBuffer pinned;
  {
    absl::MutexLock lock(&mutex_);
    Shelf& shelf = ShelfOf(bytes);
    const bool may_pin = !is_of_stream || stream_bytes_ + shelf.buffer_bytes <= options_.max_bytes / 2;
    if (may_pin) shelf.most_out = std::max(shelf.most_out, shelf.num_out + 1);
    const bool is_pinned = may_pin && !shelf.ready.empty();
    if (is_pinned || !is_of_stream) {
      ++shelf.num_out;
      pinned.pool_ = shared_from_this();
      pinned.life_ = life;
      pinned.size_ = pinned.capacity_ = bytes;
    }
    if (is_pinned) {
      pinned.data_ = shelf.ready.back();
      pinned.is_pinned_ = true;
      shelf.ready.pop_back();
      if (is_of_stream) stream_bytes_ += shelf.buffer_bytes;
      return pinned;
    }
  }
  ASSIGN_OR_RETURN(HostBuffer ordinary, HostBuffer::Create(bytes));
  // A stream's pageable memory is not counted in num_out, since a stream keeps it for long and needs no page-locked
  // memory for it. Other pageable memory is counted, so that the pool knows how many buffers are in use at once.
  if (is_of_stream) return ordinary;
  pinned.data_ = std::exchange(ordinary.data_, nullptr);
  return pinned;
}

void PinnedPool::TakeBack(const HostBuffer& buffer) {
  absl::MutexLock lock(&mutex_);
  Shelf& shelf = ShelfOf(buffer.capacity_);
  --shelf.num_out;
  if (!buffer.is_pinned_) return;
  shelf.ready.push_back(buffer.data_);
  if (buffer.life_ == BufferLife::kStream) stream_bytes_ -= shelf.buffer_bytes;
}

void PinnedPool::Adjust() {
  for (char* const data : RemoveUnwanted()) options_.source.free(data);
  for (int64_t left = kStepBytes; left > 0;) {
    const absl::StatusOr<int64_t> added = AddWanted(left);
    if (!added.ok() && !std::exchange(is_failing_, true)) {
      Log(LogLevel::kWarning, "no page-locked memory for clouds: GPUs get them by way of another copy",
          {{"pinned_bytes", pinned_bytes()}, {"error", std::string(added.status().message())}});
    }
    if (!added.ok() || *added == 0) return;
    is_failing_ = false;
    left -= *added;
  }
}

std::vector<char*> PinnedPool::RemoveUnwanted() {
  absl::MutexLock lock(&mutex_);
  const bool is_new_turn = ++num_adjusts_ == kMemoryOfAdjusts;
  if (is_new_turn) num_adjusts_ = 0;
  std::vector<char*> unwanted;
  int64_t left = kStepBytes;
  for (Shelf& shelf : shelves_) {
    while (left >= shelf.buffer_bytes && shelf.num_buffers > shelf.num_wanted() && !shelf.ready.empty()) {
      left -= shelf.buffer_bytes;
      unwanted.push_back(shelf.ready.back());
      shelf.ready.pop_back();
      --shelf.num_buffers;
      pinned_bytes_ -= shelf.buffer_bytes;
    }
    if (is_new_turn) shelf.most_out_before = std::exchange(shelf.most_out, shelf.num_out);
  }
  reservation_.Resize(pinned_bytes_).IgnoreError();  // cannot fail: it is no more than before
  return unwanted;
}

absl::StatusOr<int64_t> PinnedPool::AddWanted(int64_t most_bytes) {
  Shelf* wanted = nullptr;
  int64_t bytes = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (Shelf& shelf : shelves_) {
      const bool has_room =
          shelf.buffer_bytes <= most_bytes && pinned_bytes_ + shelf.buffer_bytes <= options_.max_bytes;
      if (!has_room || shelf.num_buffers >= shelf.num_wanted()) continue;
      wanted = &shelf;
      break;
    }
    if (wanted == nullptr) return 0;
    bytes = wanted->buffer_bytes;
    wanted->ready.reserve(static_cast<size_t>(wanted->num_buffers) + 1);
    if (options_.budget != nullptr && reservation_.bytes() == 0) {
      ASSIGN_OR_RETURN(reservation_, options_.budget->Reserve(MemoryBudget::Use::kPinned, bytes));
    } else {
      RETURN_IF_ERROR(reservation_.Resize(pinned_bytes_ + bytes));
    }
    pinned_bytes_ += bytes;
  }
  const absl::StatusOr<char*> data = options_.source.allocate(bytes);
  absl::MutexLock lock(&mutex_);
  if (!data.ok()) {
    pinned_bytes_ -= bytes;
    reservation_.Resize(pinned_bytes_).IgnoreError();  // cannot fail: it is less
    return data.status();
  }
  ++wanted->num_buffers;
  wanted->ready.push_back(*data);
  return bytes;
}

int64_t PinnedPool::pinned_bytes() const {
  absl::MutexLock lock(&mutex_);
  return pinned_bytes_;
}

PinnedPool::Shelf& PinnedPool::ShelfOf(int64_t bytes) {
  const auto units = static_cast<uint64_t>((bytes + kMinBytes - 1) / kMinBytes);
  return shelves_[static_cast<size_t>(std::bit_width(units - 1))];
}

}  // namespace voxserve
