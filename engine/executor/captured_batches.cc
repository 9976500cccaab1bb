#include "engine/executor/captured_batches.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace voxserve {

BatchKey KeyOf(const BatchShape& shape) {
  BatchKey key = {shape.program, shape.plans, shape.plan, shape.voxel_order};
  for (const int32_t bits : shape.capacities.axis_bits) key.push_back(static_cast<uint64_t>(bits));
  for (const int64_t value : {shape.num_samples, shape.ignore_label, shape.max_voxels, shape.capacities.points,
                              shape.capacities.upload_bytes}) {
    key.push_back(static_cast<uint64_t>(value));
  }
  // The length of each list comes before its values, so that different shapes have different words.
  key.push_back(shape.capacities.sites.size());
  for (const int64_t capacity : shape.capacities.sites) key.push_back(static_cast<uint64_t>(capacity));
  key.push_back(shape.needed_steps.size());
  constexpr size_t kBits = 64;
  for (size_t i = 0; i < shape.needed_steps.size(); ++i) {
    if (i % kBits == 0) key.push_back(0);
    key.back() |= uint64_t{shape.needed_steps[i]} << (i % kBits);
  }
  key.push_back(shape.memory.size());
  key.insert(key.end(), shape.memory.begin(), shape.memory.end());
  return key;
}

CapturedBatches::Way CapturedBatches::Choose(const BatchKey& key) {
  if (BringToFront(key)) return Way::kRun;
  Shape& shape = shapes_.front();
  if (shape.is_captured()) return Way::kReplay;
  if (shape.num_resting == 0) return Way::kCapture;
  --shape.num_resting;
  return Way::kRun;
}

bool CapturedBatches::BringToFront(const BatchKey& key) {
  const auto found = std::find_if(shapes_.begin(), shapes_.end(), [&](const Shape& shape) { return shape.key == key; });
  if (found != shapes_.end()) {
    shapes_.splice(shapes_.begin(), shapes_, found);
    return false;
  }
  // Only a shape without graphs is dropped here. Keep drops shapes with graphs, when no batch runs.
  if (shapes_.size() >= options_.max_shapes) {
    const auto oldest = std::find_if(shapes_.rbegin(), shapes_.rend(), [](const Shape& s) { return !s.is_captured(); });
    if (oldest != shapes_.rend()) shapes_.erase(std::next(oldest).base());
  }
  shapes_.push_front({.key = key});
  return true;
}

bool CapturedBatches::Keep(const BatchKey& key, CapturedBatch batch) {
  BringToFront(key);
  Shape& shape = shapes_.front();
  while (num_captured() >= options_.max_captured && DropOldestCaptured()) {
  }
  if (options_.budget != nullptr) {
    const int64_t wanted = batch.work->bytes();
    const bool could_suffice = bytes() >= wanted;  // to drop older graphs
    absl::StatusOr<MemoryBudget::Reservation> memory;
    do {
      memory = options_.budget->Reserve(MemoryBudget::Use::kScratch, wanted);
    } while (!memory.ok() && could_suffice && DropOldestCaptured());
    if (!memory.ok()) {
      Decline();
      return false;
    }
    shape.memory = *std::move(memory);
  }
  shape.batch = std::move(batch);
  return true;
}

bool CapturedBatches::DropOldestCaptured() {
  const auto oldest = std::find_if(shapes_.rbegin(), shapes_.rend(), [](const Shape& s) { return s.is_captured(); });
  if (oldest == shapes_.rend() || &*oldest == &shapes_.front()) return false;
  *oldest = {.key = std::move(oldest->key), .num_resting = options_.num_resting};
  return true;
}

size_t CapturedBatches::num_captured() const {
  return static_cast<size_t>(
      std::count_if(shapes_.begin(), shapes_.end(), [](const Shape& shape) { return shape.is_captured(); }));
}

int64_t CapturedBatches::bytes() const {
  int64_t bytes = 0;
  for (const Shape& shape : shapes_) {
    if (shape.is_captured()) bytes += shape.batch.work->bytes();
  }
  return bytes;
}

}  // namespace voxserve
