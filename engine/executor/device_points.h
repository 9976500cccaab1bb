#pragma once

// DevicePoints copies a batch's clouds to a GPU unchanged and decodes them there into the matrix that the network
// reads.
//
// - A cloud in page-locked memory is copied directly. Other clouds are staged in the context's page-locked buffer.
// - The bytes of sweeps stay on the device for later frames, if the context keeps copies (runtime/device_copies.h) and
//   there is room. Kept sweeps save transfers over the bus and change no result.
// - Threads: an executor owns it. Not thread-safe.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/executor/cloud_part.h"
#include "engine/model/graph.h"
#include "engine/runtime/device_copies.h"
#include "engine/runtime/execution_context.h"
#include "engine/tensor/infer_task.h"

namespace voxserve {

class DevicePoints {
 public:
  struct Options {
    bool keeps_sweeps = true;              // false: neither looks up nor keeps copies, since memory is short
    absl::Span<const int64_t> words = {};  // PointSampling::words(); copied to the device too
    // BatchCapacities::points and BatchCapacities::upload_bytes. If they are set, all batches that fit into them take
    // the same memory of the context's arena `batch`.
    int64_t point_capacity = 0;
    int64_t upload_capacity = 0;
  };

  // Returns the most bytes of device memory that the clouds before decoding, point_begin and this many words can take.
  static int64_t MostUploadBytes(BatchTasks tasks, size_t num_words);

  // Queues the copies and the decoding on the context's stream. Takes device memory from the context's arena `batch`,
  // and stages clouds in the context's buffer `upload`. point_begin: [samples + 1] in host memory; samples without
  // points are skipped. Returns RESOURCE_EXHAUSTED if memory does not suffice. Even after an error, the host waits for
  // the stream before the next CopyIn, before ReleaseSweeps and before the tasks end, since their clouds are being
  // copied until then.
  absl::Status CopyIn(const VoxelizeOp& op, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                      const Options& options, ExecutionContext& context);

  // Releases the batch's sweeps and the leases of their copies. Call it when the batch has ended.
  void ReleaseSweeps();

  // The methods below return the results of the last CopyIn, in device memory.
  const int64_t* point_begin() const { return point_begin_; }  // [samples + 1]
  const int64_t* words() const { return words_; }              // the copy of Options::words
  const float* points() const { return points_; }              // [num_points, NumPointColumns]
  const uint8_t* is_valid() const { return is_valid_; }        // [num_points]

 private:
  // A cloud whose bytes the batch needs on the device. A sweep that several samples contain has one Source.
  struct Source {
    const PointCloud* cloud = nullptr;
    std::shared_ptr<const Sweep> sweep;  // the sweep that owns `cloud`, if a copy may be kept; else null
    int64_t staged_begin = 0;            // if it is staged: its first byte in the context's `upload`
    const char* bytes = nullptr;         // on the device; null: not copied yet

    // True if the bytes are not on the device yet and must be staged, since they are not page-locked.
    bool is_staged() const { return bytes == nullptr && !cloud->is_pinned(); }
  };
  struct Part {
    CloudPart cloud;
    int64_t first_point = 0;
    size_t source = 0;
  };

  void ListParts(BatchTasks tasks, const std::vector<int64_t>& point_begin, bool keeps_sweeps);
  absl::Status FindKept(CudaContext& cuda);
  absl::Status Upload(const std::vector<int64_t>& point_begin, absl::Span<const int64_t> words,
                      ExecutionContext& context);
  absl::Status Decode(const VoxelizeOp& op, int64_t num_columns, cudaStream_t stream);

  std::vector<Source> sources_;
  std::vector<Part> parts_;
  absl::flat_hash_map<const Sweep*, size_t> source_of_sweep_;
  std::vector<DeviceCopies::Lease> leases_;

  const int64_t* point_begin_ = nullptr;
  const int64_t* words_ = nullptr;
  float* points_ = nullptr;
  uint8_t* is_valid_ = nullptr;
};

}  // namespace voxserve
