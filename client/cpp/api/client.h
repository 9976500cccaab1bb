#pragma once

// Client is the C++ client of a voxserve server. It sends a point cloud and gets a label per point, boxes or tensors.
//
//   auto client = voxserve::client::Client::Create({.address = "localhost:8500"});
//   auto cloud = voxserve::client::ReadPointCloud("scan.bin");
//   auto result = (*client)->Infer({.model = "minkunet"}, *std::move(cloud));
//   if (!result.ok()) ...          // ErrorReason(result.status()) for programs, its message for people
//   uint16_t label = result->labels[0];
//   auto found = (*client)->Detect({.model = "centerpoint"}, *std::move(another_cloud));   // found->boxes[0].score
//
// Thread-safe: one client serves a whole process. Errors are the server's (code, message, details; see error.h), and
// the client's own:
// - UNAVAILABLE with reason NO_SERVER (nothing answers at the address), TLS_FAILED or CONNECTION_LOST.
// - DEADLINE_EXCEEDED with CLIENT_TIMEOUT.
// - RESOURCE_EXHAUSTED with MESSAGE_TOO_LARGE.
// - INTERNAL with MALFORMED_RESPONSE.
// - INVALID_ARGUMENT with UNSUPPORTED_OUTPUT if the model does not have the output of the call (labels, boxes or
//   tensors). For labels and boxes the message names the call to make instead.

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
#include "client/cpp/api/detections.h"
#include "client/cpp/api/error.h"
#include "client/cpp/api/farthest_points.h"
#include "client/cpp/api/options.h"
#include "client/cpp/api/point_cloud.h"
#include "client/cpp/api/segmentation.h"
#include "client/cpp/api/stream.h"
#include "voxserve/v1/admin.pb.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

struct InferOptions {
  std::string model = {};                                // required
  int64_t version = 0;                                   // 0: the newest that is ready
  bool return_scores = false;                            // also return logits per point and class; for Infer only
  std::optional<absl::Duration> timeout = std::nullopt;  // the call's deadline; absent: Options::default_timeout
  std::string request_id = {};                           // optional; written to the server's log
  uint32_t priority = 0;                                 // 0 (most urgent) to the model's priority_levels - 1
  std::optional<FarthestPoints> sample = std::nullopt;   // asks for a sample of the cloud's points
  WantedTensors tensors = {};                            // in addition to labels or boxes; returned in Answer::tensors
};

struct TuneOptions {
  std::string model = {};                             // required
  int64_t version = 0;                                // 0: the newest that is ready
  int num_scans = 0;                                  // scans to search on; 0: the server's default
  absl::Duration max_wait = absl::ZeroDuration();     // time to wait for the scans; 0: the server's default
  absl::Duration timeout = absl::InfiniteDuration();  // of the call; the search ends with the call
};

enum class Health { kServing, kNotServing };

class Client {
 public:
  // Connects lazily: only the first call fails if there is no server at the address. INVALID_ARGUMENT for bad options.
  static absl::StatusOr<std::unique_ptr<Client>> Create(Options options);

  // Cancels the asynchronous calls in flight and waits until their callbacks have returned. So the destructor must not
  // run in such a callback, and no callback may own the client or one of its streams.
  ~Client();

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Returns the labels of a model that has labels. Blocks. A cloud that is moved in is not copied.
  absl::StatusOr<Segmentation> Infer(const InferOptions& options, PointCloud cloud);

  // Returns the boxes of a model that has boxes; otherwise like Infer.
  absl::StatusOr<Detections> Detect(const InferOptions& options, PointCloud cloud);

  // Returns only the tensors of a model that has tensors; otherwise like Infer. InferOptions::tensors names them.
  // Returns INVALID_ARGUMENT (UNSUPPORTED_OUTPUT) if the model does not have one of the names, or if no names are given
  // and the model has labels or boxes.
  absl::StatusOr<Answer> InferTensors(const InferOptions& options, PointCloud cloud);

  // Like Infer and Detect, but return at once. `done` is called exactly once: on a gRPC thread, or on the caller's
  // thread if the client itself refuses the request. `done` must not block.
  void InferAsync(const InferOptions& options, PointCloud cloud,
                  std::function<void(absl::StatusOr<Segmentation>)> done);
  void DetectAsync(const InferOptions& options, PointCloud cloud, std::function<void(absl::StatusOr<Detections>)> done);

  // Opens a stream of one vehicle's frames; see stream.h. Returns at once, so that on_end, not this function, reports
  // an address without a server or a model that does not exist. Returns INVALID_ARGUMENT for bad options. The stream
  // may outlive the client.
  absl::StatusOr<std::unique_ptr<Stream>> OpenStream(const StreamOptions& options, StreamCallbacks callbacks);
  // Opens a stream to a model with boxes.
  absl::StatusOr<std::unique_ptr<Stream>> OpenDetectionStream(const StreamOptions& options,
                                                              DetectionStreamCallbacks callbacks);
  // Opens a stream to a model with tensors.
  absl::StatusOr<std::unique_ptr<Stream>> OpenTensorStream(const StreamOptions& options,
                                                           StreamCallbacksOf<Answer> callbacks);

  // Returns every version of every model, also those that failed to load, with their problems; see
  // proto/voxserve/v1/inference.proto.
  absl::StatusOr<std::vector<v1::ModelVersion>> ListModels();

  // Returns one version of a model; 0: the newest that is ready.
  absl::StatusOr<v1::ModelVersion> GetModel(absl::string_view model, int64_t version = 0);

  // Makes the server load a model of its repository, or reload it if its files have changed. version: 0 means the
  // versions that the model's version policy asks for. Blocks until the model is ready; a reload interrupts no request.
  // Returns the numbers of the versions in service. If the model is bad, returns FAILED_PRECONDITION (BAD_MODEL) with
  // every problem, and the versions that are in service stay so.
  absl::StatusOr<std::vector<int64_t>> LoadModel(absl::string_view model, int64_t version = 0,
                                                 std::optional<absl::Duration> timeout = std::nullopt);

  // Takes a version (0: all versions) of the model out of service until LoadModel is called. Returns the numbers of the
  // versions that were taken out.
  absl::StatusOr<std::vector<int64_t>> UnloadModel(absl::string_view model, int64_t version = 0,
                                                   std::optional<absl::Duration> timeout = std::nullopt);

  // Makes the server search for a faster plan for a model (a plan: how each convolution is computed), and use it. The
  // search runs on scans of the server's requests. Blocks for minutes. on_progress (may be empty) is called on the
  // caller's thread. See proto/voxserve/v1/admin.proto.
  absl::StatusOr<v1::TunePlanResult> TunePlan(const TuneOptions& options,
                                              const std::function<void(const v1::TunePlanProgress&)>& on_progress);

  // Returns whether the server should get requests. Returns UNAVAILABLE (NO_SERVER) if there is no server.
  absl::StatusOr<Health> CheckHealth(std::optional<absl::Duration> timeout = std::nullopt);

  const Options& options() const;

 private:
  class Impl;
  explicit Client(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace voxserve::client
