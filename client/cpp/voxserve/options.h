#pragma once

// Options of a client, of a call and of a stream. Setters return the object, so that they chain:
//
//   auto options = voxserve::InferOptions("minkunet").set_timeout(std::chrono::milliseconds(200));
//
// Values are checked where they are used: Client::Create, Infer and OpenStream return INVALID_ARGUMENT, which names the
// option.

#include <voxserve/export.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace voxserve::detail {
struct ClientOptionsData;
struct InferOptionsData;
struct StreamOptionsData;
}  // namespace voxserve::detail

namespace voxserve {
inline namespace abi0 {

class VOXSERVE_API ClientOptions {
 public:
  // host:port, unix:path, or several servers: dns:///name:port or ipv4:10.0.0.1:8500,10.0.0.2:8500.
  explicit ClientOptions(std::string_view address = "localhost:8500");
  ~ClientOptions();
  ClientOptions(const ClientOptions& other);
  ClientOptions& operator=(const ClientOptions& other);

  // The address of LoadModel and UnloadModel; by default the next port of the address.
  ClientOptions& set_admin_address(std::string_view address);
  // Paths of PEM files: the roots of the server's certificate; if the server asks, the client's certificate and key.
  ClientOptions& set_tls(std::string_view ca, std::string_view certificate = {}, std::string_view key = {});
  ClientOptions& set_token(std::string_view bearer_token);  // needs TLS unless the address is of this machine
  // Returns the W3C traceparent of the current trace, or "". Called on the thread that makes a call.
  ClientOptions& set_traceparent(std::function<std::string()> traceparent);
  ClientOptions& set_num_channels(int number);                    // connections, 1.3 GB/s each; default 1
  ClientOptions& set_max_message_bytes(int64_t bytes);            // default 64 MiB
  ClientOptions& set_timeout(std::chrono::nanoseconds timeout);   // of calls without their own; default 30 s
  ClientOptions& set_max_attempts(int attempts);                  // 1 to 5 while servers are UNAVAILABLE; default 3
  ClientOptions& set_keepalive(std::chrono::nanoseconds period);  // at least 2 s; default 10 s

  const detail::ClientOptionsData& data() const noexcept { return *data_; }  // private to the library

 private:
  std::unique_ptr<detail::ClientOptionsData> data_;
};

class VOXSERVE_API InferOptions {
 public:
  explicit InferOptions(std::string_view model);
  ~InferOptions();
  InferOptions(const InferOptions& other);
  InferOptions& operator=(const InferOptions& other);

  InferOptions& set_version(int64_t version);   // default 0: the newest that is ready
  InferOptions& set_return_scores(bool wants);  // also logits per point and class; for Infer alone
  InferOptions& set_timeout(std::chrono::nanoseconds timeout);
  InferOptions& set_request_id(std::string_view id);  // written to the server's log
  InferOptions& set_priority(uint32_t priority);      // 0 (default) is the most urgent
  // Tensors to return as well, by name; as float16, or as float32.
  InferOptions& set_tensors(std::vector<std::string> names, bool as_float16 = false);
  // Asks for a sample of the points by farthest point sampling; drawn with a seed, or from point 0. for_network: the
  // network sees the sample alone.
  InferOptions& set_sample(uint32_t num_points, std::optional<uint64_t> seed = {}, bool for_network = false);

  const detail::InferOptionsData& data() const noexcept { return *data_; }  // private to the library

 private:
  std::unique_ptr<detail::InferOptionsData> data_;
};

// kLatest: a newer frame supersedes one that has not run, so that no lag builds up. kQueue: all frames, in order.
enum class StreamPolicy : int { kLatest = 0, kQueue = 1 };

class VOXSERVE_API StreamOptions {
 public:
  explicit StreamOptions(std::string_view model);
  ~StreamOptions();
  StreamOptions(const StreamOptions& other);
  StreamOptions& operator=(const StreamOptions& other);

  StreamOptions& set_version(int64_t version);
  StreamOptions& set_return_scores(bool wants);
  StreamOptions& set_priority(uint32_t priority);
  StreamOptions& set_policy(StreamPolicy policy);                      // default kLatest
  StreamOptions& set_frame_timeout(std::chrono::nanoseconds timeout);  // from a frame's arrival at the server
  StreamOptions& set_max_queued_frames(int frames);  // kQueue: at the server, 1 to 64; 0 (default): the server's
  StreamOptions& set_max_unsent_frames(int frames);  // kQueue: in the client, 1 to 1024; default 8
  // The server runs the last sweeps together. Every frame then needs a pose, and every cloud a stamp. age_feature: the
  // model's feature that gets a point's age in seconds.
  StreamOptions& set_sweeps(int num_sweeps, std::string_view age_feature = {},
                            std::optional<std::chrono::nanoseconds> max_age = {});
  StreamOptions& set_tensors(std::vector<std::string> names, bool as_float16 = false);
  // How long the client looks for a server after its server went away; default 0: the stream ends instead.
  StreamOptions& set_reopen_for(std::chrono::nanoseconds time);

  const detail::StreamOptionsData& data() const noexcept { return *data_; }  // private to the library

 private:
  std::unique_ptr<detail::StreamOptionsData> data_;
};

}  // namespace abi0
}  // namespace voxserve
