#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/status_macros.h"
#include "engine/executor/device_points.h"
#include "engine/executor/point_reader.h"
#include "engine/runtime/aligned_bytes.h"
#include "engine/runtime/cuda_status.h"
#include "engine/runtime/streaming_copy.h"
#include "kernels/points/decode_points.h"

namespace voxserve {
namespace {

int64_t BytesOf(const PointCloud& cloud) { return static_cast<int64_t>(cloud.bytes().size()); }

absl::Status CopyToDevice(char* to, const char* from, int64_t num_bytes, cudaStream_t stream) {
  RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(to, from, static_cast<size_t>(num_bytes), cudaMemcpyHostToDevice, stream));
  return absl::OkStatus();
}

}  // namespace

absl::Status DevicePoints::CopyIn(const VoxelizeOp& op, BatchTasks tasks, const std::vector<int64_t>& point_begin,
                                  const Options& options, ExecutionContext& context) {
  CudaContext& cuda = *context.cuda;
  ReleaseSweeps();
  ListParts(tasks, point_begin, options.keeps_sweeps && cuda.copies != nullptr);
  RETURN_IF_ERROR(FindKept(cuda));
  RETURN_IF_ERROR(Upload(point_begin, options.words, context));
  if (const int64_t taken = cuda.batch.Top().taken; taken < options.upload_capacity) {
    RETURN_IF_ERROR(cuda.batch.Take(options.upload_capacity - taken).status());
  }
  const int64_t num_columns = NumPointColumns(op), capacity = std::max(point_begin.back(), options.point_capacity);
  ASSIGN_OR_RETURN(points_, cuda.batch.TakeArray<float>(capacity * num_columns));
  ASSIGN_OR_RETURN(is_valid_, cuda.batch.TakeArray<uint8_t>(capacity));
  return Decode(op, num_columns, cuda.stream.view().get());
}

int64_t DevicePoints::MostUploadBytes(BatchTasks tasks, size_t num_words) {
  int64_t bytes = AlignedBytes(static_cast<int64_t>((tasks.size() + 1 + num_words) * sizeof(int64_t)));
  for (const InferTask* const task : tasks) {
    for (const CloudPart& cloud : PartsOf(*task)) bytes += AlignedBytes(BytesOf(*cloud.cloud));
  }
  return bytes;
}

void DevicePoints::ReleaseSweeps() {
  leases_.clear();
  sources_.clear();
  parts_.clear();
  source_of_sweep_.clear();
}

void DevicePoints::ListParts(BatchTasks tasks, const std::vector<int64_t>& point_begin, bool keeps_sweeps) {
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (point_begin[i] == point_begin[i + 1]) continue;
    int64_t first_point = point_begin[i];
    for (const CloudPart& cloud : PartsOf(*tasks[i])) {
      if (cloud.num_points() == 0) continue;
      size_t source = sources_.size();
      if (cloud.placed != nullptr)
        source = source_of_sweep_.try_emplace(cloud.placed->sweep.get(), source).first->second;
      if (source == sources_.size()) {
        sources_.push_back({.cloud = cloud.cloud});
        if (keeps_sweeps && cloud.placed != nullptr) sources_.back().sweep = cloud.placed->sweep;
      }
      parts_.push_back({.cloud = cloud, .first_point = first_point, .source = source});
      first_point += cloud.num_points();
    }
  }
}

absl::Status DevicePoints::FindKept(CudaContext& cuda) {
  for (Source& source : sources_) {
    if (source.sweep == nullptr) continue;
    ASSIGN_OR_RETURN(DeviceCopies::Lease lease, cuda.copies->Find(source.sweep, cuda.stream.view()));
    if (lease == nullptr) continue;
    source.bytes = lease->data();
    leases_.push_back(std::move(lease));
  }
  return absl::OkStatus();
}

// Copies point_begin, the words and every cloud that is neither pinned nor kept to one place, in transfers that begin
// while later bytes are still being staged. Each pinned cloud and each sweep that is to be kept has a transfer of its
// own.
absl::Status DevicePoints::Upload(const std::vector<int64_t>& point_begin, absl::Span<const int64_t> words,
                                  ExecutionContext& context) {
  CudaContext& cuda = *context.cuda;
  const cudaStream_t stream = cuda.stream.view().get();
  const auto begin_bytes = static_cast<int64_t>(point_begin.size() * sizeof(int64_t));
  const auto words_bytes = static_cast<int64_t>(words.size() * sizeof(int64_t));
  // What is copied together comes first.
  std::vector<Source*> staged;
  int64_t together = AlignedBytes(begin_bytes + words_bytes), total = together;
  for (const bool is_kept : {false, true}) {
    for (Source& source : sources_) {
      if (!source.is_staged() || (source.sweep != nullptr) != is_kept) continue;
      source.staged_begin = std::exchange(total, total + AlignedBytes(BytesOf(*source.cloud)));
      staged.push_back(&source);
    }
    if (!is_kept) together = total;
  }
  RETURN_IF_ERROR(cuda.upload.Reserve(total));
  char* const staging = cuda.upload.data();
  ASSIGN_OR_RETURN(char* const uploaded, cuda.batch.Take(together));
  point_begin_ = reinterpret_cast<const int64_t*>(uploaded);
  words_ = point_begin_ + point_begin.size();

  std::memcpy(staging, point_begin.data(), static_cast<size_t>(begin_bytes));
  if (!words.empty()) std::memcpy(staging + begin_bytes, words.data(), static_cast<size_t>(words_bytes));
  std::vector<StagedRange> ranges;
  for (const Source* const source : staged) {
    ranges.push_back({.to = staging + source->staged_begin, .from = source->cloud->bytes()});
  }
  int64_t num_sent = 0;
  cudaError_t sent = cudaSuccess;  // no absl::Status, which allocates: `send` must not throw
  const auto send = [&](const char* staged_end) {
    const int64_t end = std::min(together, int64_t{staged_end - staging});
    if (end <= num_sent || sent != cudaSuccess) return;
    sent = cudaMemcpyAsync(uploaded + num_sent, staging + num_sent, static_cast<size_t>(end - num_sent),
                           cudaMemcpyHostToDevice, stream);
    num_sent = end;
  };
  StagedCopy(*context.pool, ranges, send);
  send(staging + together);
  RETURN_IF_CUDA_ERROR(sent);
  for (Source& source : sources_) {
    if (source.bytes != nullptr) continue;
    if (source.is_staged() && source.sweep == nullptr) {
      source.bytes = uploaded + source.staged_begin;
      continue;
    }
    const int64_t num_bytes = BytesOf(*source.cloud);
    const char* const from = source.is_staged() ? staging + source.staged_begin : source.cloud->bytes().data();
    if (source.sweep != nullptr) {
      ASSIGN_OR_RETURN(DeviceCopies::Lease lease, cuda.copies->Add(source.sweep, from, num_bytes, cuda.stream.view()));
      if (lease != nullptr) {
        source.bytes = lease->data();
        leases_.push_back(std::move(lease));
        continue;
      }
    }
    ASSIGN_OR_RETURN(char* const data, cuda.batch.Take(num_bytes));
    RETURN_IF_ERROR(CopyToDevice(data, from, num_bytes, stream));
    source.bytes = data;
  }
  return absl::OkStatus();
}

absl::Status DevicePoints::Decode(const VoxelizeOp& op, int64_t num_columns, cudaStream_t stream) {
  std::vector<kernels::DecodePointsParams> clouds;
  for (const Part& part : parts_) {
    kernels::DecodePointsParams& params = clouds.emplace_back(DecodeParams(op, part.cloud));
    params.bytes = sources_[part.source].bytes;
    params.points = points_ + part.first_point * num_columns;
    params.is_valid = is_valid_ + part.first_point;
  }
  RETURN_IF_CUDA_ERROR(kernels::cuda::DecodePoints(clouds, stream));
  return absl::OkStatus();
}

}  // namespace voxserve
