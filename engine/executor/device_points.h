#pragma once

// A batch's points on a GPU: the clouds' bytes go there as they came, and are decoded there into the matrix that the
// network reads. A cloud in page-locked memory is copied from where it lies; others go through the context's. Bytes of
// sweeps stay there for the frames to come, where the context keeps copies (runtime/device_copies.h) and there is room;
// that saves the way over the bus and changes no result.
//
// Belongs to an executor; called from its thread alone.

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
    bool keeps_sweeps = true;              // false where memory is short: nothing is looked up or kept either
    absl::Span<const int64_t> words = {};  // of the caller's, that go there too
    // SiteRooms'; what is taken of the context's `batch` is then the same for all batches that they are enough for.
    int64_t room_points = 0;
    int64_t room_bytes = 0;
  };

  // Returns the most that clouds, point_begin and as many words can take there before they are decoded.
  static int64_t MostUploadBytes(BatchTasks tasks, size_t num_words);

  // Queues the copies and the decoding on the context's stream, into its `batch` and out of its `upload`. point_begin:
  // [samples + 1] in host memory; samples without points are passed over. RESOURCE_EXHAUSTED for memory. Whatever comes
  // of it, the host waits for the stream before the next call, before ReleaseSweeps, and before the tasks end: their
  // clouds are copied from meanwhile.
  absl::Status CopyIn(const VoxelizeOp& op, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                      const Options& options, ExecutionContext& context);

  // The batch has ended: neither the sweeps nor their copies are needed any more.
  void ReleaseSweeps();

  // Device memory, of the last CopyIn.
  const int64_t* point_begin() const { return point_begin_; }  // [samples + 1]
  const int64_t* words() const { return words_; }              // as Options has them
  const float* points() const { return points_; }              // [num_points, NumPointColumns]
  const uint8_t* is_valid() const { return is_valid_; }        // [num_points]

 private:
  // Bytes that the batch needs on the device. A sweep that is part of several samples has one.
  struct Source {
    const PointCloud* cloud = nullptr;
    std::shared_ptr<const Sweep> sweep;  // whose cloud it is, where its bytes may be kept; else null
    int64_t staged_begin = 0;            // of one that is staged: where they begin in the context's `upload`
    const char* bytes = nullptr;         // on the device; null: not there yet

    // Its bytes have yet to go to the device, and cannot be copied from where they lie.
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
