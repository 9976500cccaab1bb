#pragma once

// CapturedBatches keeps the CUDA graphs of a GPU's batches, for one execution context, and decides when a batch is
// captured and when it is replayed. A graph is the whole work of a batch, from the points on the device to the answers
// in page-locked memory. A replay launches the same kernels with the same parameters on the same memory. So graphs are
// looked up by everything on which those parameters depend (BatchShape). The numbers of points and sites are not part
// of the shape, since kernels read these on the device.
//
// - The first batch of a shape runs without a capture, since capturing costs more than one batch gains. The second
//   batch of the shape is captured while the GPU runs it. Later batches replay its graph.
// - The least recently used graphs are dropped first. Their shapes then run without a capture for a while, so that more
//   shapes in turns than there may be graphs are not captured all the time. Memory for graphs is reserved in the
//   process's memory budget. If the budget refuses, older graphs are dropped; if that is not enough, batches of the
//   shape run without a capture for a while.
// - A new tuned plan, or a program that was loaded again, has a new id. Graphs with the old id are never found again,
//   and are dropped when they are the least recently used.
//
// An executor owns it. Keep and Clear drop graphs, so the host must have waited for the stream before it calls them.
// Choose drops none. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "engine/executor/captured_work.h"
#include "engine/geometry/batch_capacities.h"
#include "engine/ops/cuda_output_collector.h"
#include "engine/runtime/memory_budget.h"

namespace voxserve {

// Everything on which the launches of a batch depend.
struct BatchShape {
  uint64_t program = 0;  // Program::id
  uint64_t plans = 0;    // PlanTable::id
  uint64_t plan = 0;     // its index in the table
  int64_t num_samples = 0;
  int64_t ignore_label = 0;  // RunLimits, like the next two
  int64_t max_voxels = 0;
  uint64_t voxel_order = 0;
  BatchCapacities capacities;
  std::vector<bool> needed_steps;  // by step: whether the batch's outputs need it
  // The ids of all memory that the launches use, but the weights. Not its addresses: a graph that copies to freed
  // memory must not be launched, even if other memory has the same address now.
  std::vector<uint64_t> memory;
};

// The key of a shape; shapes that differ have different keys.
using BatchKey = std::vector<uint64_t>;
BatchKey KeyOf(const BatchShape& shape);

struct CapturedBatch {
  std::unique_ptr<ReplayableWork> work;
  std::vector<CudaOutputCollector::Queued> outputs;  // what `work` writes
  // The memory of the context's arenas that `work` uses.
  int64_t batch_bytes = 0;
  int64_t features_bytes = 0;
};

class CapturedBatches {
 public:
  struct Options {
    size_t max_shapes = 128;   // remembered shapes, captured or not
    size_t max_captured = 32;  // those of the remembered shapes that have graphs
    // A shape whose capture failed, or whose graph was dropped, runs this many batches without a capture.
    int num_resting = 100;
    MemoryBudget* budget = nullptr;  // outlives this; null: memory is not counted
  };
  enum class Way {
    kRun,      // run without a capture
    kCapture,  // run, capture what ran, then call Keep or Decline
    kReplay,   // launch Batch().work
  };

  explicit CapturedBatches(const Options& options) : options_(options) {}

  // Decides how the next batch runs, by its shape.
  Way Choose(const BatchKey& key);
  // Returns the batch to replay, after Choose returned kReplay. Valid until the next call of a method that changes
  // this.
  const CapturedBatch& Batch() const { return shapes_.front().batch; }

  // Keeps the captured batch. key: that of its shape after the capture, which differs from the key for which Choose was
  // called if memory grew meanwhile. If the budget refuses the memory, declines the shape and returns false.
  bool Keep(const BatchKey& key, CapturedBatch batch);
  // Notes that the shape that was used last could not be captured.
  void Decline() { shapes_.front().num_resting = options_.num_resting; }
  // Forgets everything.
  void Clear() { shapes_.clear(); }

  size_t num_shapes() const { return shapes_.size(); }
  size_t num_captured() const;
  int64_t bytes() const;  // of all captured graphs

 private:
  struct Shape {
    BatchKey key;
    CapturedBatch batch;  // without work: the shape is not captured
    MemoryBudget::Reservation memory;
    int num_resting = 0;  // this many batches still run uncaptured

    bool is_captured() const { return batch.work != nullptr; }
  };

  // Makes the shape the one that was used last. Adds it and returns true if it is new.
  bool BringToFront(const BatchKey& key);
  // Drops the graph that was used longest ago, unless it was used last. Returns false if it drops none.
  bool DropOldestCaptured();

  const Options options_;
  std::list<Shape> shapes_;  // the last used first
};

}  // namespace voxserve
