#pragma once

// The C++ client of a voxserve server: a point cloud in, a label per point out.
//
//   auto client = voxserve::client::Client::Create({.address = "localhost:8500"});
//   auto cloud = voxserve::client::ReadPointCloud("scan.bin");
//   auto result = (*client)->Infer({.model = "minkunet"}, *std::move(cloud));
//   if (!result.ok()) ...          // ErrorReason(result.status()) for programs, its message for people
//   uint16_t label = result->labels[0];
//
// Thread-safe: one client serves a whole process. Errors are the server's (code, message, details; see error.h), and
// the client's own: UNAVAILABLE with reason NO_SERVER (nothing answers at the address) or CONNECTION_LOST,
// DEADLINE_EXCEEDED with CLIENT_TIMEOUT, RESOURCE_EXHAUSTED with MESSAGE_TOO_LARGE, INTERNAL with MALFORMED_RESPONSE.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/cpp/error.h"
#include "client/cpp/point_cloud.h"
#include "voxserve/v1/admin.pb.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct Options {
  std::string address = "localhost:8500";  // host:port, or unix:path
  // Connections to the server; calls take turns. One carries about 1.3 GB/s, so more help where several threads send
  // large clouds at once.
  int num_channels = 1;
  int64_t max_message_bytes = int64_t{64} << 20;       // of a request and of an answer; the server's default too
  absl::Duration default_timeout = absl::Seconds(30);  // of calls that name none; infinite: no deadline

  // INVALID_ARGUMENT naming the option.
  absl::Status Validate() const;
};

struct InferOptions {
  std::string model = {};                                // required
  int64_t version = 0;                                   // 0: the newest that is ready
  bool return_scores = false;                            // logits per point and class as well
  std::optional<absl::Duration> timeout = std::nullopt;  // of the call, sent to the server as its deadline
  std::string request_id = {};                           // optional; stands in the server's log
};

struct TuneOptions {
  std::string model = {};                             // required
  int64_t version = 0;                                // 0: the newest that is ready
  int num_scans = 0;                                  // to search on; 0: the server's default
  absl::Duration max_wait = absl::ZeroDuration();     // for them; 0: the server's default
  absl::Duration timeout = absl::InfiniteDuration();  // of the call; its end ends the search
};

struct Stage {
  std::string name;  // decode, queue, copy_in, voxelize, geometry, features, head, copy_out, encode
  absl::Duration duration;
};

struct Segmentation {
  std::string model;
  int64_t version = 0;  // that answered
  std::string device;   // "cpu" or "cuda:N"
  std::string request_id;
  std::vector<uint16_t> labels;  // [num_points] class ids; ignore_label where a point was not labelled
  int bytes_per_label = 1;       // 1 or 2: what a label needs when stored
  uint16_t ignore_label = 255;
  int num_classes = 0;
  std::vector<float> scores;  // [num_points, num_classes] logits; empty unless asked for
  v1::PointCounts counts;
  std::vector<Stage> stages;  // on the server
  absl::Duration round_trip;  // from the call to the decoded answer, as seen here
};

enum class Health { kServing, kNotServing };

class Client {
 public:
  // Connects lazily: an address without a server shows in the first call. INVALID_ARGUMENT for bad options.
  static absl::StatusOr<std::unique_ptr<Client>> Create(Options options);

  // Cancels the asynchronous calls that are under way and waits until their callbacks have returned, so it may not
  // run in such a callback.
  ~Client();

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Blocks. A cloud that is moved in is not copied.
  absl::StatusOr<Segmentation> Infer(const InferOptions& options, PointCloud cloud);

  // Returns at once; `done` is called exactly once, on a thread of gRPC's or (refusals) on this one. It must not block.
  void InferAsync(const InferOptions& options, PointCloud cloud,
                  std::function<void(absl::StatusOr<Segmentation>)> done);

  // Every version of every model, broken ones with their problems; documented in proto/voxserve/v1/inference.proto.
  absl::StatusOr<std::vector<v1::ModelVersion>> ListModels();

  // version 0: the newest that is ready.
  absl::StatusOr<v1::ModelVersion> GetModel(absl::string_view model, int64_t version = 0);

  // Lets the server search a plan for a model on the scans that it serves, and swap it in. Blocks, for minutes;
  // on_progress (may be empty) is called on this thread. Documented in proto/voxserve/v1/admin.proto.
  absl::StatusOr<v1::TunePlanResult> TunePlan(const TuneOptions& options,
                                              const std::function<void(const v1::TunePlanProgress&)>& on_progress);

  // Whether the server serves. UNAVAILABLE, NO_SERVER where there is none.
  absl::StatusOr<Health> CheckHealth(std::optional<absl::Duration> timeout = std::nullopt);

  const Options& options() const;

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace voxserve::client
