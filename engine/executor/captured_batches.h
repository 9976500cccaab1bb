#pragma once

// CapturedBatches keeps the CUDA graphs of a GPU's batches, for one execution context, and decides when a batch is
// captured and when it is replayed. A replay launches the same kernels with the same parameters on the same memory. So
// a batch is found by everything on which those parameters depend (BatchShape). This includes the numbers of samples,
// plans, capacities ("rooms") and addresses, but not the numbers of sites, since kernels read these on the device.
//
// - A shape that comes once runs as it is, since capturing costs more than one batch gains. A shape that comes again is
//   captured while it is queued, and replayed from then on.
// - The least recently used graphs are dropped first. Memory for graphs is reserved in the process's memory budget. If
//   the budget refuses, older graphs are dropped; if that is not enough, the shape runs as it is for a while.
// - A new tuned plan has another id, and so has a program that was loaded anew. Graphs of the old one are not found any
//   more, and are dropped in their turn.
//
// Belongs to an executor. Keep and Clear drop graphs, so they are called after the stream has been waited for. Choose
// drops none. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "engine/executor/captured_work.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

// Steps [begin, end) of a program.
struct StepRange {
  size_t begin = 0;
  size_t end = 0;

  friend bool operator==(const StepRange&, const StepRange&) = default;
};

// A step, as a batch uses it.
struct StepUse {
  bool is_needed = false;      // false: it is skipped
  bool is_capturable = false;  // Step::IsCapturable
};

// Returns the ranges of steps to capture for a batch. Each is as long as possible: it begins and ends with a needed
// step that is capturable, has at least two of these, and no needed step that is not. No range crosses `border`, at
// which a stage's time is taken.
std::vector<StepRange> CapturableRanges(absl::Span<const StepUse> steps, size_t border);

// Everything on which the launches of a batch's captured steps depend.
struct BatchShape {
  uint64_t program = 0;  // Program::id
  uint64_t plans = 0;    // PlanTable::id: of one generation
  uint64_t plan = 0;     // which one of the table
  int64_t num_samples = 0;
  int64_t ignore_label = 0;
  std::vector<int64_t> capacities;     // of the levels
  std::vector<bool> needed_steps;      // by step: whether the batch's outputs need it
  std::vector<const void*> addresses;  // all addresses that steps get
};

// The key of a shape; shapes that differ have different keys.
using BatchKey = std::vector<uint64_t>;
BatchKey KeyOf(const BatchShape& shape);

struct CapturedPart {
  StepRange steps;
  std::unique_ptr<ReplayableWork> work;
};

class CapturedBatches {
 public:
  struct Options {
    size_t max_shapes = 128;         // remembered shapes, captured or not
    size_t max_captured = 16;        // captured ones among them
    int num_resting = 100;           // after a failed capture, this many batches of the shape run uncaptured
    MemoryBudget* budget = nullptr;  // outlives this; null: memory is not counted
  };
  enum class Way {
    kRun,      // without a capture
    kCapture,  // then call Keep or Decline
    kReplay,   // Parts
  };

  explicit CapturedBatches(const Options& options) : options_(options) {}

  // Decides how the next batch runs, by its shape.
  Way Choose(const BatchKey& key);
  // Returns the parts to replay. Valid after Choose returned kReplay, until the next Keep, Decline or Clear.
  absl::Span<const CapturedPart> Parts() const { return shapes_.front().parts; }

  // Keeps the captured parts of the shape for which Choose was called last. Returns false if memory does not allow it.
  bool Keep(std::vector<CapturedPart> parts);
  // Tells that this shape could not be captured, so that it is not tried again for a while.
  void Decline() { shapes_.front().num_resting = options_.num_resting; }
  // Forgets everything.
  void Clear() { shapes_.clear(); }

  size_t num_shapes() const { return shapes_.size(); }
  size_t num_captured() const;
  int64_t bytes() const;  // of what is captured

 private:
  struct Shape {
    BatchKey key;
    std::vector<CapturedPart> parts;  // empty: the shape is not captured
    MemoryBudget::Reservation memory;
    int num_resting = 0;  // this many batches still run uncaptured
  };

  // Drops the captured shape that was used longest ago, unless it was used last. Returns false if it drops none.
  bool DropOldestCaptured();

  const Options options_;
  std::list<Shape> shapes_;  // the last used first
};

}  // namespace voxserve
