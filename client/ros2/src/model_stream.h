#pragma once

// ModelStream keeps a stream to one model open, for one topic of clouds: it opens the stream again after it ended, and
// pairs each answer with the message that it belongs to. It knows no node. Thread-safe.
//
// Only the newest cloud counts (the policy LATEST): a newer one supersedes one that has not run, in the client and in
// the server, so that no lag builds up.

#include <voxserve/client.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sensor_msgs/msg/point_cloud2.hpp>
#include <string>

#include "conversion.h"
#include "counts.h"

namespace voxserve_ros {

struct StreamSettings {
  std::string model = {};
  CloudOptions cloud = {};
  std::optional<std::chrono::nanoseconds> frame_timeout = {};
  std::chrono::nanoseconds reopen_for = std::chrono::seconds(10);  // how long the client itself looks for a server
};

// T: voxserve::Segmentation or voxserve::Detections.
template <typename T>
class ModelStream {
 public:
  using Message = std::shared_ptr<const sensor_msgs::msg::PointCloud2>;
  // Called for each answer, one at a time, on a thread of the client. model: as the server described it.
  using OnAnswer =
      std::function<void(const sensor_msgs::msg::PointCloud2& message, const T& answer, const voxserve::Model& model)>;

  // client: must outlive the stream.
  ModelStream(voxserve::Client* client, StreamSettings settings, OnAnswer on_answer)
      : client_(client), settings_(std::move(settings)), on_answer_(std::move(on_answer)) {}

  ~ModelStream() { Close(); }
  ModelStream(const ModelStream&) = delete;
  ModelStream& operator=(const ModelStream&) = delete;

  Counts& counts() { return counts_; }
  const std::string& model() const { return settings_.model; }

  // Opens the stream if it is not open: asks the server for the model, which blocks up to the client's timeout. The
  // owner calls it every second, say, from one thread.
  voxserve::Status OpenIfClosed();

  // Sends the message's cloud. A message that cannot be sent, or comes while the stream is closed, is counted.
  void Send(const Message& message);

  void Close();

 private:
  struct Pending {
    Message message;
    std::chrono::steady_clock::time_point arrival;
  };
  // Holds what the callbacks of one connection use. They keep it, so that a late one finds no other connection's
  // frames.
  struct Connection {
    voxserve::Model model;
    std::mutex mutex;
    std::map<uint64_t, Pending> pending;  // by frame id; LATEST bounds it: superseded frames get their result, too
    bool has_ended = false;
  };

  void TakeResult(Connection* connection, uint64_t frame_id, const voxserve::Result<T>& result);
  voxserve::Result<voxserve::Stream> Open(const voxserve::StreamOptions& options, voxserve::OnResult<T> on_result,
                                          voxserve::StreamEvents events);
  // Returns an error if the model is not there, not ready, or has another output.
  voxserve::Status CheckModel(const voxserve::Result<voxserve::Model>& model) const;

  voxserve::Client* const client_;
  const StreamSettings settings_;
  const OnAnswer on_answer_;
  Counts counts_;
  std::mutex mutex_;  // of what follows; callbacks of the stream never take it
  std::shared_ptr<Connection> connection_;
  std::optional<voxserve::Stream> stream_;
  uint64_t next_frame_id_ = 1;
};

extern template class ModelStream<voxserve::Segmentation>;
extern template class ModelStream<voxserve::Detections>;

}  // namespace voxserve_ros
