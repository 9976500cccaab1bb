#include "engine/executor/captured_batches.h"

#include <algorithm>
#include <iterator>

namespace voxserve {

std::vector<StepRange> CapturableRanges(absl::Span<const StepUse> steps, size_t border) {
  constexpr int kFewestSteps = 2;  // launching a single step costs no more than launching a graph
  std::vector<StepRange> ranges;
  StepRange range;
  int num_steps = 0;  // number of steps in the range that the batch needs
  const auto close = [&] {
    if (num_steps >= kFewestSteps) ranges.push_back(range);
    num_steps = 0;
  };
  for (size_t i = 0; i < steps.size(); ++i) {
    if (i == border) close();
    if (!steps[i].is_needed) continue;
    if (!steps[i].is_capturable) {
      close();
      continue;
    }
    if (num_steps++ == 0) range.begin = i;
    range.end = i + 1;
  }
  close();
  return ranges;
}

BatchKey KeyOf(const BatchShape& shape) {
  BatchKey key = {shape.program, shape.plans, shape.plan, static_cast<uint64_t>(shape.num_samples),
                  static_cast<uint64_t>(shape.ignore_label)};
  // The length of each list comes before its values, so that different shapes have different words.
  key.push_back(shape.capacities.size());
  for (const int64_t capacity : shape.capacities) key.push_back(static_cast<uint64_t>(capacity));
  key.push_back(shape.needed_steps.size());
  constexpr size_t kBits = 64;
  for (size_t i = 0; i < shape.needed_steps.size(); ++i) {
    if (i % kBits == 0) key.push_back(0);
    key.back() |= uint64_t{shape.needed_steps[i]} << (i % kBits);
  }
  key.push_back(shape.addresses.size());
  for (const void* const address : shape.addresses) key.push_back(reinterpret_cast<uintptr_t>(address));
  return key;
}

CapturedBatches::Way CapturedBatches::Choose(const BatchKey& key) {
  const auto found = std::find_if(shapes_.begin(), shapes_.end(), [&](const Shape& shape) { return shape.key == key; });
  if (found == shapes_.end()) {
    // Only a shape without graphs is dropped here. Keep drops shapes with graphs, when no batch runs.
    if (shapes_.size() >= options_.max_shapes) {
      const auto oldest =
          std::find_if(shapes_.rbegin(), shapes_.rend(), [](const Shape& s) { return s.parts.empty(); });
      if (oldest != shapes_.rend()) shapes_.erase(std::next(oldest).base());
    }
    shapes_.push_front({.key = key});
    return Way::kRun;
  }
  shapes_.splice(shapes_.begin(), shapes_, found);
  Shape& shape = shapes_.front();
  if (!shape.parts.empty()) return Way::kReplay;
  if (shape.num_resting == 0) return Way::kCapture;
  --shape.num_resting;
  return Way::kRun;
}

bool CapturedBatches::Keep(std::vector<CapturedPart> parts) {
  Shape& shape = shapes_.front();
  int64_t bytes = 0;
  for (const CapturedPart& part : parts) bytes += part.work->bytes();
  while (num_captured() >= options_.max_captured && DropOldestCaptured()) {
  }
  if (options_.budget != nullptr) {
    absl::StatusOr<MemoryBudget::Reservation> memory;
    do {
      memory = options_.budget->Reserve(MemoryBudget::Use::kScratch, bytes);
    } while (!memory.ok() && DropOldestCaptured());
    if (!memory.ok()) {
      Decline();
      return false;
    }
    shape.memory = *std::move(memory);
  }
  shape.parts = std::move(parts);
  return true;
}

bool CapturedBatches::DropOldestCaptured() {
  const auto oldest = std::find_if(shapes_.rbegin(), shapes_.rend(), [](const Shape& s) { return !s.parts.empty(); });
  if (oldest == shapes_.rend()) return false;
  const auto dropped = std::next(oldest).base();
  if (dropped == shapes_.begin()) return false;
  shapes_.erase(dropped);
  return true;
}

size_t CapturedBatches::num_captured() const {
  return static_cast<size_t>(
      std::count_if(shapes_.begin(), shapes_.end(), [](const Shape& shape) { return !shape.parts.empty(); }));
}

int64_t CapturedBatches::bytes() const {
  int64_t bytes = 0;
  for (const Shape& shape : shapes_) {
    for (const CapturedPart& part : shape.parts) bytes += part.work->bytes();
  }
  return bytes;
}

}  // namespace voxserve
