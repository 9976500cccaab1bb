#include <voxserve/options.h>

#include <utility>

#include "client/cpp/voxserve/data.h"

namespace voxserve {
inline namespace abi0 {

using std::chrono::nanoseconds;

ClientOptions::ClientOptions(std::string_view address) : data_(std::make_unique<detail::ClientOptionsData>()) {
  data_->options.address = std::string(address);
}
ClientOptions::~ClientOptions() = default;
ClientOptions::ClientOptions(const ClientOptions& other)
    : data_(std::make_unique<detail::ClientOptionsData>(*other.data_)) {}
ClientOptions& ClientOptions::operator=(const ClientOptions& other) {
  *data_ = *other.data_;
  return *this;
}

ClientOptions& ClientOptions::set_admin_address(std::string_view address) {
  data_->options.admin_address = std::string(address);
  return *this;
}
ClientOptions& ClientOptions::set_tls(std::string_view ca, std::string_view certificate, std::string_view key) {
  data_->options.tls_ca = std::string(ca);
  data_->options.tls_certificate = std::string(certificate);
  data_->options.tls_key = std::string(key);
  return *this;
}
ClientOptions& ClientOptions::set_token(std::string_view bearer_token) {
  data_->options.token = std::string(bearer_token);
  return *this;
}
ClientOptions& ClientOptions::set_traceparent(std::function<std::string()> traceparent) {
  data_->options.traceparent = std::move(traceparent);
  return *this;
}
ClientOptions& ClientOptions::set_num_channels(int number) {
  data_->options.num_channels = number;
  return *this;
}
ClientOptions& ClientOptions::set_max_message_bytes(int64_t bytes) {
  data_->options.max_message_bytes = bytes;
  return *this;
}
ClientOptions& ClientOptions::set_timeout(nanoseconds timeout) {
  data_->options.default_timeout = detail::ToAbsl(timeout);
  return *this;
}
ClientOptions& ClientOptions::set_max_attempts(int attempts) {
  data_->options.max_attempts = attempts;
  return *this;
}
ClientOptions& ClientOptions::set_keepalive(nanoseconds period) {
  data_->options.keepalive = detail::ToAbsl(period);
  return *this;
}

InferOptions::InferOptions(std::string_view model) : data_(std::make_unique<detail::InferOptionsData>()) {
  data_->options.model = std::string(model);
}
InferOptions::~InferOptions() = default;
InferOptions::InferOptions(const InferOptions& other)
    : data_(std::make_unique<detail::InferOptionsData>(*other.data_)) {}
InferOptions& InferOptions::operator=(const InferOptions& other) {
  *data_ = *other.data_;
  return *this;
}

InferOptions& InferOptions::set_version(int64_t version) {
  data_->options.version = version;
  return *this;
}
InferOptions& InferOptions::set_return_scores(bool wants) {
  data_->options.return_scores = wants;
  return *this;
}
InferOptions& InferOptions::set_timeout(nanoseconds timeout) {
  data_->options.timeout = detail::ToAbsl(timeout);
  return *this;
}
InferOptions& InferOptions::set_request_id(std::string_view id) {
  data_->options.request_id = std::string(id);
  return *this;
}
InferOptions& InferOptions::set_priority(uint32_t priority) {
  data_->options.priority = priority;
  return *this;
}
InferOptions& InferOptions::set_tensors(std::vector<std::string> names, bool as_float16) {
  data_->options.tensors = detail::ToWanted(std::move(names), as_float16);
  return *this;
}
InferOptions& InferOptions::set_sample(uint32_t num_points, std::optional<uint64_t> seed, bool for_network) {
  using Use = client::FarthestPoints::Use;
  data_->options.sample =
      client::FarthestPoints{.num_points = num_points, .seed = seed, .use = for_network ? Use::kNetwork : Use::kReturn};
  return *this;
}

StreamOptions::StreamOptions(std::string_view model) : data_(std::make_unique<detail::StreamOptionsData>()) {
  data_->options.model = std::string(model);
}
StreamOptions::~StreamOptions() = default;
StreamOptions::StreamOptions(const StreamOptions& other)
    : data_(std::make_unique<detail::StreamOptionsData>(*other.data_)) {}
StreamOptions& StreamOptions::operator=(const StreamOptions& other) {
  *data_ = *other.data_;
  return *this;
}

StreamOptions& StreamOptions::set_version(int64_t version) {
  data_->options.version = version;
  return *this;
}
StreamOptions& StreamOptions::set_return_scores(bool wants) {
  data_->options.return_scores = wants;
  return *this;
}
StreamOptions& StreamOptions::set_priority(uint32_t priority) {
  data_->options.priority = priority;
  return *this;
}
StreamOptions& StreamOptions::set_policy(StreamPolicy policy) {
  data_->options.policy = policy == StreamPolicy::kQueue ? client::StreamPolicy::kQueue : client::StreamPolicy::kLatest;
  return *this;
}
StreamOptions& StreamOptions::set_frame_timeout(nanoseconds timeout) {
  data_->options.frame_timeout = detail::ToAbsl(timeout);
  return *this;
}
StreamOptions& StreamOptions::set_max_queued_frames(int frames) {
  data_->options.max_queued_frames = frames;
  return *this;
}
StreamOptions& StreamOptions::set_max_unsent_frames(int frames) {
  data_->options.max_unsent_frames = frames;
  return *this;
}
StreamOptions& StreamOptions::set_sweeps(int num_sweeps, std::string_view age_feature,
                                         std::optional<nanoseconds> max_age) {
  client::SweepOptions sweeps{.num_sweeps = num_sweeps, .age_feature = std::string(age_feature)};
  if (max_age) sweeps.max_age = detail::ToAbsl(*max_age);
  data_->options.sweeps = std::move(sweeps);
  return *this;
}
StreamOptions& StreamOptions::set_tensors(std::vector<std::string> names, bool as_float16) {
  data_->options.tensors = detail::ToWanted(std::move(names), as_float16);
  return *this;
}
StreamOptions& StreamOptions::set_reopen_for(nanoseconds time) {
  data_->options.reopen_for = detail::ToAbsl(time);
  return *this;
}

}  // namespace abi0
}  // namespace voxserve
