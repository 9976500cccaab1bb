#pragma once

// CapturedBatches keeps the CUDA graphs of a GPU's batches, for one execution context, and decides when a batch is
// captured and when it is replayed. A replay launches the same kernels with the same parameters on the same memory. So
// graphs are looked up by everything on which those parameters depend (BatchShape): the program, the plan, the number
// of samples, the capacities ("rooms", site_rooms.h) and the addresses. The numbers of sites are not part of the shape,
// since kernels read these on the device.
//
// - The first batch of a shape runs without a capture, since capturing costs more than one batch gains. The second
//   batch of the shape is captured while it is queued. Later batches replay its graphs.
// - The least recently used graphs are dropped first. Memory for graphs is reserved in the process's memory budget. If
//   the budget refuses, older graphs are dropped; if that is not enough, batches of the shape run without a capture for
//   a while.
// - A new tuned plan, or a program that was loaded again, has a new id. Graphs with the old id are never found again,
//   and are dropped when they are the least recently used.
//
// An executor owns it. Keep and Clear drop graphs, so the host must have waited for the stream before it calls them.
// Choose drops none. Not thread-safe.

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

// Says how a batch uses a step.
struct StepUse {
  bool is_needed = false;      // false: it is skipped
  bool is_capturable = false;  // Step::IsCapturable
};

// Returns the ranges of steps to capture for a batch. A range begins and ends with a step that is needed and
// capturable. It has at least two such steps, and no step that is needed but not capturable. Each range is as long as
// possible, but none crosses `border`, the index of a step before which a stage's time is recorded.
std::vector<StepRange> CapturableRanges(absl::Span<const StepUse> steps, size_t border);

// Everything on which the launches of a batch's captured steps depend.
struct BatchShape {
  uint64_t program = 0;  // Program::id
  uint64_t plans = 0;    // PlanTable::id
  uint64_t plan = 0;     // its index in the table
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
    size_t max_captured = 16;        // those of the remembered shapes that have graphs
    int num_resting = 100;           // after a failed capture, this many batches of the shape run uncaptured
    MemoryBudget* budget = nullptr;  // outlives this; null: memory is not counted
  };
  enum class Way {
    kRun,      // run without a capture
    kCapture,  // run and capture, then call Keep or Decline
    kReplay,   // launch Parts in place of their steps
  };

  explicit CapturedBatches(const Options& options) : options_(options) {}

  // Decides how the next batch runs, by its shape.
  Way Choose(const BatchKey& key);
  // Returns the parts to replay. Valid after Choose returned kReplay, until the next Keep, Decline or Clear.
  absl::Span<const CapturedPart> Parts() const { return shapes_.front().parts; }

  // Keeps the captured parts of the shape for which Choose was called last. If the budget refuses the memory, declines
  // the shape and returns false.
  bool Keep(std::vector<CapturedPart> parts);
  // Notes that the shape for which Choose was called last could not be captured. Its next num_resting batches run
  // without a capture.
  void Decline() { shapes_.front().num_resting = options_.num_resting; }
  // Forgets everything.
  void Clear() { shapes_.clear(); }

  size_t num_shapes() const { return shapes_.size(); }
  size_t num_captured() const;
  int64_t bytes() const;  // of all captured graphs

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
