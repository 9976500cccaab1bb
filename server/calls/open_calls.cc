#include "server/calls/open_calls.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/base/error_reason.h"
#include "server/calls/call.h"

namespace voxserve {

namespace {

int64_t Scaled(int64_t limit, double share) {
  return std::max<int64_t>(1, std::llround(static_cast<double>(limit) * share));
}

}  // namespace

absl::Status OpenCalls::Check(CallKind kind, double share, const Counts& of_client) const {
  if (draining_ && kind != CallKind::kInfo) {
    return DrainingError();
  }
  if (kind == CallKind::kInfo) {
    if (of_client.info < options_.max_client_info_calls) return absl::OkStatus();
    return ClientLimitError(absl::StrCat("this client has ", of_client.info, " open calls of health and reflection; ",
                                         "its share is ", options_.max_client_info_calls));
  }
  if (const int64_t limit = Scaled(options_.max_client_calls, share); of_client.calls >= limit) {
    return ClientLimitError(absl::StrCat("this client has ", of_client.calls, " open calls; its share is ", limit));
  }
  if (num_requests_ + num_streams_ >= options_.max_calls) {
    return QueueFullError(absl::StrCat("the server has ", num_requests_ + num_streams_, " open calls; its limit is ",
                                       options_.max_calls));
  }
  if (kind != CallKind::kStream) return absl::OkStatus();
  if (const int64_t limit = Scaled(options_.max_client_streams, share); of_client.streams >= limit) {
    return ClientLimitError(absl::StrCat("this client has ", of_client.streams, " streams; its share is ", limit));
  }
  if (num_streams_ >= options_.max_streams) {
    return QueueFullError(
        absl::StrCat("the server holds ", num_streams_, " streams; its limit is ", options_.max_streams));
  }
  return absl::OkStatus();
}

absl::Status OpenCalls::Open(std::shared_ptr<Call> call) {
  absl::MutexLock lock(&mutex_);
  const CallKind kind = call->kind();
  const auto client = clients_.find(call->client());
  const Counts counts = client == clients_.end() ? Counts() : client->second;
  if (absl::Status status = Check(kind, call->caller().share(), counts); !status.ok()) return status;
  Counts& of_client = clients_[call->client()];
  PeerCounts& of_peer = peers_[call->peer()];
  calls_.emplace(std::move(call), true);
  // From here on nothing is allocated, so nothing can fail.
  ++of_client.calls;
  ++of_peer.calls;
  ++of_peer.reading;
  if (kind == CallKind::kStream) ++of_client.streams, ++num_streams_;
  if (kind == CallKind::kRequest) ++num_requests_;
  if (kind == CallKind::kInfo) ++of_client.info, ++of_peer.info, ++of_peer.reading_info;
  return absl::OkStatus();
}

void OpenCalls::Close(const std::shared_ptr<Call>& call) {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const bool is_reading = found->second;
  calls_.erase(found);
  const auto client = clients_.find(call->client());
  --client->second.calls;
  if (call->kind() == CallKind::kStream) --client->second.streams, --num_streams_;
  if (call->kind() == CallKind::kRequest) --num_requests_;
  if (call->kind() == CallKind::kInfo) --client->second.info;
  if (client->second.calls == 0) clients_.erase(client);
  const auto peer = peers_.find(call->peer());
  if (is_reading) EndReading(call->kind(), peer->second);
  if (call->kind() == CallKind::kInfo) --peer->second.info;
  if (--peer->second.calls == 0) peers_.erase(peer);
  if (num_requests_ + num_streams_ == 0) emptied_.SignalAll();
}

bool OpenCalls::EndReading(const std::shared_ptr<Call>& call) {
  absl::MutexLock lock(&mutex_);
  const auto peer = peers_.find(call->peer());
  if (peer == peers_.end()) return false;
  const auto found = calls_.find(call);
  if (found != calls_.end() && std::exchange(found->second, false)) EndReading(call->kind(), peer->second);
  return peer->second.reading > 0;
}

void OpenCalls::EndReading(CallKind kind, PeerCounts& of_peer) {
  --of_peer.reading;
  if (kind == CallKind::kInfo) --of_peer.reading_info;
}

int64_t OpenCalls::NumReading(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second.reading;
}

int64_t OpenCalls::NumReadingInfo(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? 0 : found->second.reading_info;
}

bool OpenCalls::HasWork(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(peer);
  return found != peers_.end() && found->second.calls > found->second.info;
}

void OpenCalls::StartDraining() {
  std::vector<std::shared_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [call, is_reading] : calls_) {
      if (call->kind() != CallKind::kInfo) calls.push_back(call);
    }
  }
  for (const std::shared_ptr<Call>& call : calls) call->Drain();
}

int64_t OpenCalls::AwaitClosed(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  while (num_requests_ + num_streams_ > 0 && SteadyNow() < deadline) emptied_.WaitUntil(&mutex_, deadline);
  return num_requests_ + num_streams_;
}

void OpenCalls::AwaitUpdated(absl::Time deadline) const {
  constexpr absl::Duration kPoll = absl::Milliseconds(1);
  const auto is_updating = [this] {
    std::vector<std::shared_ptr<Call>> calls;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [call, is_reading] : calls_) calls.push_back(call);
    }
    return std::any_of(calls.begin(), calls.end(), [](const auto& call) { return call->is_updating(); });
  };
  while (is_updating() && SteadyNow() < deadline) absl::SleepFor(kPoll);
}

int64_t OpenCalls::num_requests() const {
  absl::MutexLock lock(&mutex_);
  return num_requests_;
}

int64_t OpenCalls::num_streams() const {
  absl::MutexLock lock(&mutex_);
  return num_streams_;
}

}  // namespace voxserve
