#include "client/cpp/cli/bench/bench_scans.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/api/frame_encoding.h"
#include "client/cpp/cli/scan_jobs.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "client/cpp/io/pose_file.h"

namespace voxserve::client {
namespace {

grpc::ByteBuffer EncodeRequest(const BenchOptions& options, PointCloud cloud) {
  v1::InferRequest request;
  request.set_model(options.model);
  request.set_version(options.version);
  request.set_priority(static_cast<uint32_t>(options.priority));
  *request.mutable_cloud() = std::move(cloud);
  const std::string bytes = request.SerializeAsString();
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

// Encodes the cloud whole, or in parts of equal size.
absl::StatusOr<std::vector<BenchCloud>> EncodeClouds(const PointCloud& cloud, uint64_t num_parts) {
  if (num_parts == 1) return std::vector<BenchCloud>{{EncodeCloud(cloud), cloud.num_points()}};
  if (cloud.data().size() != cloud.num_points() * cloud.point_step()) {
    return absl::InvalidArgumentError("its rows have padding, which --parts does not take apart");
  }
  std::vector<BenchCloud> parts;
  PointCloud part = cloud;
  part.set_height(0);
  for (uint64_t i = 0; i < num_parts; ++i) {
    const uint64_t begin = cloud.num_points() * i / num_parts;
    const uint64_t end = cloud.num_points() * (i + 1) / num_parts;
    part.set_num_points(end - begin);
    part.set_data(cloud.data().substr(begin * cloud.point_step(), (end - begin) * cloud.point_step()));
    parts.push_back({EncodeCloud(part, FrameForm::kInParts), end - begin});
  }
  return parts;
}

absl::Status AddPoses(const std::string& path, std::vector<BenchScan>* scans) {
  const absl::StatusOr<std::vector<FramePose>> poses = ReadPoses(path);
  if (!poses.ok()) return poses.status();
  if (poses->front().frame.empty()) {
    if (poses->size() != scans->size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", poses->size(), " poses without names for ", scans->size(), " scans"));
    }
    for (size_t i = 0; i < scans->size(); ++i) (*scans)[i].pose = (*poses)[i].pose;
    return absl::OkStatus();
  }
  for (BenchScan& scan : *scans) {
    const std::string name = std::filesystem::path(scan.file).stem().string();
    const auto found =
        std::find_if(poses->begin(), poses->end(), [&](const FramePose& pose) { return pose.frame == name; });
    if (found == poses->end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": no pose of frame ", name, " (", scan.file, ")"));
    }
    scan.pose = found->pose;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<BenchScan>> ReadBenchScans(const BenchOptions& options, const Channels& channels) {
  const absl::StatusOr<std::vector<ScanJob>> jobs = PlanJobs({.inputs = options.paths});
  if (!jobs.ok()) return jobs.status();
  std::vector<BenchScan> scans;
  for (const ScanJob& job : *jobs) {
    absl::StatusOr<PointCloud> cloud = ReadPointCloud(job.input, {.fields = options.fields});
    if (!cloud.ok()) return cloud.status();
    if (options.compact) {
      if (absl::Status status = CompactOrWarn(job.input, &*cloud); !status.ok()) return status;
    }
    if (absl::Status status = channels.CheckSize(*cloud); !status.ok()) return status;
    BenchScan scan = {.file = job.input, .num_points = cloud->num_points()};
    if (options.mode() == LoadMode::kStreams) {
      absl::StatusOr<std::vector<BenchCloud>> clouds = EncodeClouds(*cloud, static_cast<uint64_t>(options.num_parts));
      if (!clouds.ok()) {
        return absl::Status(clouds.status().code(), absl::StrCat(job.input, ": ", clouds.status().message()));
      }
      scan.clouds = *std::move(clouds);
    } else {
      scan.request = EncodeRequest(options, *std::move(cloud));
    }
    scans.push_back(std::move(scan));
  }
  if (!options.poses.empty()) {
    if (absl::Status status = AddPoses(options.poses, &scans); !status.ok()) return status;
  }
  return scans;
}

}  // namespace voxserve::client
