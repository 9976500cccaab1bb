#pragma once

// CapturedWork is work of a GPU that is recorded once and launched again by one call: a CUDA graph.
//
// Not thread-safe: the thread that captures is the one whose calls on the stream are recorded, and no other thread uses
// the stream meanwhile. Other threads may use their own streams, and allocate.

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/runtime/stream.h"

struct CUgraphExec_st;

namespace voxserve {

// Work that can be launched again and again. It is an interface so that CapturedBatches can be tested without a GPU.
class ReplayableWork {
 public:
  virtual ~ReplayableWork() = default;
  // Queues the recorded work on the stream: the same kernels with the same parameters, on the same memory.
  virtual absl::Status Launch(StreamView stream) = 0;
  // Returns the memory that the work takes, in bytes.
  virtual int64_t bytes() const = 0;
};

class CapturedWork final : public ReplayableWork {
 public:
  // Records the work that `queue` queues on the stream, without running it. If recording fails, the stream can still be
  // used. Returns the error of `queue` if it failed, else CUDA's. A call that waits, or that allocates from a
  // DevicePool, cannot be recorded.
  static absl::StatusOr<std::unique_ptr<CapturedWork>> Capture(StreamView stream,
                                                               const std::function<absl::Status()>& queue);
  // The GPU must have finished the work.
  ~CapturedWork() override;
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  absl::Status Launch(StreamView stream) override;
  // Returns an estimate from the number of nodes, since CUDA does not report the size.
  int64_t bytes() const override { return kBytesAGraph + num_nodes_ * kBytesANode; }
  int64_t num_nodes() const { return num_nodes_; }

 private:
  static constexpr int64_t kBytesAGraph = int64_t{64} << 10;
  static constexpr int64_t kBytesANode = int64_t{8} << 10;

  CapturedWork(CUgraphExec_st* work, int64_t num_nodes) : work_(work), num_nodes_(num_nodes) {}

  CUgraphExec_st* const work_;
  const int64_t num_nodes_;
};

}  // namespace voxserve
