#include "server/calls/open_calls.h"

#include <algorithm>
#include <cmath>
#include <optional>
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

// No call gives way while this part of the limit has done so and not ended yet.
constexpr int64_t kLeavingShare = 4;

// The place of a call is known by the call's address. OpenCalls owns the call as long as it has a place.
SharedPlaces::Id IdOf(const Call& call) { return reinterpret_cast<SharedPlaces::Id>(&call); }
Call* CallOf(SharedPlaces::Id id) {
  return reinterpret_cast<Call*>(id);  // NOLINT(performance-no-int-to-ptr)
}

}  // namespace

absl::Status OpenCalls::CheckClient(CallKind kind, double share, const Counts& of_client) const {
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
  if (kind != CallKind::kStream) return absl::OkStatus();
  if (const int64_t limit = Scaled(options_.max_client_streams, share); of_client.streams >= limit) {
    return ClientLimitError(absl::StrCat("this client has ", of_client.streams, " streams; its share is ", limit));
  }
  return absl::OkStatus();
}

absl::Status OpenCalls::MakePlaceIn(SharedPlaces* places, int64_t limit, const char* what, const std::string& client,
                                    std::vector<std::shared_ptr<Call>>* gave_way) {
  if (places->size() < limit) return absl::OkStatus();
  const auto idle_since = [](SharedPlaces::Id id) { return CallOf(id)->idle_since(); };
  // A call that has given way still takes memory until its client's connection has taken its end.
  const bool is_slow = num_leaving_ >= std::max<int64_t>(1, limit / kLeavingShare);
  const std::optional<SharedPlaces::Id> found =
      is_slow ? std::nullopt : places->WhoGivesWay(client, SteadyNow(), idle_since);
  if (!found.has_value()) {
    return QueueFullError(absl::StrCat("the server has ", places->size(), " open ", what, "; its limit is ", limit,
                                       ", and none that is idle gives way"));
  }
  const std::shared_ptr<Call>& call = gave_way->emplace_back(CallOf(*found)->shared_from_this());
  // From here on nothing is allocated, so nothing can fail.
  calls_.at(call).state = OpenCall::State::kGaveWay;
  RemovePlaces(*call);
  Count(*call, -1);
  ++num_leaving_;
  return absl::OkStatus();
}

absl::Status OpenCalls::MakePlaces(CallKind kind, const std::string& client,
                                   std::vector<std::shared_ptr<Call>>* gave_way) {
  if (kind == CallKind::kInfo) {
    return MakePlaceIn(&info_places_, options_.max_info_calls, "calls of health and reflection", client, gave_way);
  }
  if (kind == CallKind::kStream) {
    absl::Status status = MakePlaceIn(&stream_places_, options_.max_streams, "streams", client, gave_way);
    if (!status.ok()) return status;
  }
  return MakePlaceIn(&work_places_, options_.max_calls, "calls", client, gave_way);
}

void OpenCalls::AddPlaces(const Call& call) {
  const absl::Time now = SteadyNow();
  if (call.kind() == CallKind::kInfo) {
    info_places_.Add(call.client(), IdOf(call), now);
  } else {
    work_places_.Add(call.client(), IdOf(call), now);
  }
  if (call.kind() == CallKind::kStream) stream_places_.Add(call.client(), IdOf(call), now);
}

void OpenCalls::RemovePlaces(const Call& call) {
  for (SharedPlaces* places : {&work_places_, &stream_places_, &info_places_}) places->Remove(IdOf(call));
}

void OpenCalls::Count(const Call& call, int64_t change) {
  const auto client = clients_.find(call.client());
  client->second.calls += change;
  if (call.kind() == CallKind::kStream) client->second.streams += change, num_streams_ += change;
  if (call.kind() == CallKind::kRequest) num_requests_ += change;
  if (call.kind() == CallKind::kInfo) client->second.info += change;
  if (client->second.calls == 0) clients_.erase(client);
}

absl::Status OpenCalls::Admit(const std::shared_ptr<Call>& call, std::vector<std::shared_ptr<Call>>* gave_way) {
  absl::MutexLock lock(&mutex_);
  const CallKind kind = call->kind();
  const auto client = clients_.find(call->client());
  const Counts counts = client == clients_.end() ? Counts() : client->second;
  if (absl::Status status = CheckClient(kind, call->caller().share(), counts); !status.ok()) return status;
  if (absl::Status status = MakePlaces(kind, call->client(), gave_way); !status.ok()) return status;
  // If an allocation fails here, Close undoes what was done before.
  OpenCall& open = calls_.emplace(call, OpenCall()).first->second;
  PeerCounts& of_peer = peers_[call->peer()];
  of_peer.calls.emplace(call.get(), kind);
  AddPlaces(*call);
  clients_[call->client()];
  // From here on nothing is allocated, so nothing can fail.
  Count(*call, 1);
  CountReading(kind, 1, of_peer);
  if (kind == CallKind::kInfo) ++of_peer.info;
  open.state = OpenCall::State::kOpen;
  open.is_reading = true;
  return absl::OkStatus();
}

absl::Status OpenCalls::Open(std::shared_ptr<Call> call) {
  std::vector<std::shared_ptr<Call>> gave_way;
  const absl::Status status = Admit(call, &gave_way);
  for (const std::shared_ptr<Call>& idle : gave_way) {
    idle->GiveWay(
        GaveWayError("the server has as many calls as it may; this one was idle, and another client got its "
                     "place; try again when there is something to send"));
  }
  return status;
}

void OpenCalls::Close(const std::shared_ptr<Call>& call) {
  absl::MutexLock lock(&mutex_);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const OpenCall open = found->second;
  calls_.erase(found);
  RemovePlaces(*call);
  if (open.state == OpenCall::State::kOpen) Count(*call, -1);
  if (open.state == OpenCall::State::kGaveWay) --num_leaving_;
  if (const auto peer = peers_.find(call->peer()); peer != peers_.end()) {
    if (open.is_reading) CountReading(call->kind(), -1, peer->second);
    if (open.state != OpenCall::State::kOpening && call->kind() == CallKind::kInfo) --peer->second.info;
    peer->second.calls.erase(call.get());
    if (peer->second.calls.empty()) peers_.erase(peer);
  }
  if (num_requests_ + num_streams_ == 0) emptied_.SignalAll();
}

bool OpenCalls::EndReading(const std::shared_ptr<Call>& call) {
  absl::MutexLock lock(&mutex_);
  const auto peer = peers_.find(call->peer());
  if (peer == peers_.end()) return false;
  const auto found = calls_.find(call);
  if (found != calls_.end() && std::exchange(found->second.is_reading, false)) {
    CountReading(call->kind(), -1, peer->second);
  }
  return peer->second.reading.all() > 0;
}

void OpenCalls::CountReading(CallKind kind, int64_t change, PeerCounts& of_peer) {
  (kind == CallKind::kInfo ? of_peer.reading.info : of_peer.reading.work) += change;
}

ReadingCalls OpenCalls::Reading(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(peer);
  return found == peers_.end() ? ReadingCalls() : found->second.reading;
}

bool OpenCalls::HasWork(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(peer);
  return found != peers_.end() && static_cast<int64_t>(found->second.calls.size()) > found->second.info;
}

absl::Time OpenCalls::IdleSince(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  absl::Time since = absl::InfinitePast();
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return since;
  for (const auto& [call, kind] : found->second.calls) {
    if (kind != CallKind::kInfo) since = std::max(since, call->idle_since());
  }
  return since;
}

std::vector<std::shared_ptr<Call>> OpenCalls::All() const {
  std::vector<std::shared_ptr<Call>> calls;
  absl::MutexLock lock(&mutex_);
  calls.reserve(calls_.size());
  for (const auto& [call, open] : calls_) calls.push_back(call);
  return calls;
}

void OpenCalls::LookAtIdentities() {
  for (const std::shared_ptr<Call>& call : All()) call->LookAtIdentity();
}

void OpenCalls::StartDraining() {
  std::vector<std::shared_ptr<Call>> calls;
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    for (const auto& [call, open] : calls_) {
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
    const std::vector<std::shared_ptr<Call>> calls = All();
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
