#include "deploy/offline/scan_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/cpp/io/field_spec.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "engine/base/status_macros.h"
#include "engine/runtime/host_buffer.h"
#include "server/codec/codec.h"

namespace voxserve::offline {
namespace {

absl::StatusOr<PointCloud> ReadScan(const std::string& file, const ScanLimits& limits) {
  absl::StatusOr<v1::PointCloud> message = client::ReadPointCloud(file, {.fields = limits.fields});
  if (!message.ok()) return message.status();
  if (message->num_points() > static_cast<uint64_t>(limits.max_points)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": it has ", message->num_points(), " points, the model takes at most ", limits.max_points));
  }
  ASSIGN_OR_RETURN(HostBuffer data, HostBuffer::CopyOf(message->data()));
  absl::StatusOr<PointCloud> cloud = DecodeCloud(&*message, std::move(data));
  if (cloud.ok()) return cloud;
  return absl::Status(cloud.status().code(), absl::StrCat(file, ": ", cloud.status().message()));
}

}  // namespace

absl::Status CheckFields(const std::string& fields) {
  if (fields.empty()) return absl::OkStatus();
  const auto spec = client::ParseFieldSpec(fields);
  if (spec.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--fields: ", spec.status().message()));
}

absl::StatusOr<Scans> ReadScans(const std::string& program, const std::vector<client::ScanJob>& jobs,
                                const ScanLimits& limits, const Surroundings& surroundings) {
  Scans scans;
  const size_t count = std::min(jobs.size(), static_cast<size_t>(limits.max_scans));
  const std::string stage = absl::StrCat("reading ", count, count == 1 ? " scan" : " scans");
  ProgressReport report(surroundings);
  for (size_t i = 0; i < count; ++i) {
    if (surroundings.wants_stop()) return absl::CancelledError("interrupted");
    report.Show(static_cast<double>(i) / static_cast<double>(count), stage);
    const std::string& file = jobs[i * jobs.size() / count].input;
    absl::StatusOr<PointCloud> cloud = ReadScan(file, limits);
    if (!cloud.ok()) {
      report.Clear();
      *surroundings.err << program << ": left out: " << cloud.status().message() << std::endl;
      continue;
    }
    scans.files.push_back(file);
    scans.tasks.push_back({.cloud = *std::move(cloud)});
  }
  if (!scans.tasks.empty()) return scans;
  return absl::InvalidArgumentError(absl::StrCat("none of ", count, " scans can be used"));
}

}  // namespace voxserve::offline
