#include "server/acceptor/stray_guard.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

namespace voxserve {
namespace {

constexpr double kShareOfSent = 1.0 / 16;  // a client may send two WINDOW_UPDATE frames for each half KiB of answers

// Returns the bytes that a message accounts for. Go's TLS cuts messages into records of 1.2 KB at first, which adds
// 2.4%; the frames of a small message, with TLS, add some hundred bytes.
double WithOverhead(int64_t message_bytes) { return static_cast<double>(message_bytes) * (1 + 1.0 / 16) + 256; }

}  // namespace

void StrayGuard::OnCall(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  ++news_[peer].calls;
}

void StrayGuard::OnMessage(const std::string& peer, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  News& news = news_[peer];
  news.messages += WithOverhead(bytes);
  news.message_bytes += bytes;
}

void StrayGuard::BeginLook() {
  counts_ = std::exchange(is_whole_, false);
  looked_at_.clear();
  absl::MutexLock lock(&mutex_);
  std::swap(looked_at_, news_);
}

void StrayGuard::Look(const std::map<std::string, SocketTraffic>& traffic, absl::Time now) {
  const absl::Duration elapsed = std::max(absl::ZeroDuration(), now - std::min(now, last_look_));
  last_look_ = now;
  turn_ = (turn_ + 1) % kLooksToWait;
  EarnBack(elapsed);
  // Both maps are sorted by peer, so one walk over both finds new, present and closed connections.
  auto known = connections_.begin();
  const auto judge_closed_before = [&](const std::string* peer) {
    while (known != connections_.end() && (peer == nullptr || known->first < *peer)) {
      JudgeClosed(known->first, known->second);
      known = connections_.erase(known);
    }
  };
  for (const auto& [peer, its_traffic] : traffic) {
    judge_closed_before(&peer);
    if (known == connections_.end() || known->first != peer) {
      known = connections_.emplace_hint(known, peer, Connection());
    }
    const auto news = looked_at_.find(peer);
    quiet_bytes_ += Update(peer, its_traffic, news == looked_at_.end() ? News() : news->second, elapsed, known->second);
    Judge(peer, known->second);
    ++known;
  }
  judge_closed_before(nullptr);
  is_whole_ = true;
  JudgeBusyThreads(now);
}

void StrayGuard::EarnBack(absl::Duration elapsed) {
  const double refill = kRefillBytesPerSecond * absl::ToDoubleSeconds(elapsed);
  for (auto& [client, used] : used_) used -= refill;
  for (const auto& [peer, news] : looked_at_) {
    if (used_.empty()) return;
    const auto used = used_.find(options_.client_of(peer));
    if (used != used_.end()) used->second -= static_cast<double>(news.message_bytes);
  }
  std::erase_if(used_, [](const auto& entry) { return entry.second <= 0; });
}

double StrayGuard::Update(const std::string& peer, const SocketTraffic& traffic, const News& news,
                          absl::Duration elapsed, Connection& connection) const {
  const auto fresh = static_cast<double>(std::max<int64_t>(0, traffic.read - connection.traffic.read));
  const auto sent = static_cast<double>(std::max<int64_t>(0, traffic.sent - connection.traffic.sent));
  connection.traffic = traffic;
  connection.recent[turn_] = counts_ ? fresh : 0;
  if (!counts_) return 0;
  if (fresh > 0) connection.brought_at = last_look_;
  const double accounted = static_cast<double>(news.calls * kCallBytes) + news.messages + sent * kShareOfSent +
                           kBytesPerSecond * absl::ToDoubleSeconds(elapsed);
  connection.stray = std::max(0.0, connection.stray + fresh - accounted);
  // Whoever has sent nothing has begun no upload, so the number of uploads that may go on is still an upper bound.
  if (fresh > 0 || news.calls > 0 || connection.stray > kConnectionBytes) connection.allowed = Allowed(peer);
  connection.forgivable =
      connection.stray > 0 ? std::max(connection.forgivable, connection.allowed) : connection.allowed;
  connection.forgivable += static_cast<double>(news.calls * options_.max_call_bytes);
  return fresh + sent;
}

double StrayGuard::Allowed(const std::string& peer) const {
  const Reading reading = options_.reading(peer);
  return static_cast<double>(kConnectionBytes + reading.small * kSmallMessageBytes +
                             std::min(reading.uploads * options_.max_call_bytes, options_.max_upload_bytes));
}

void StrayGuard::Judge(const std::string& peer, Connection& connection) {
  const double recent = std::accumulate(connection.recent.begin(), connection.recent.end(), 0.0);
  connection.old = connection.stray - recent;
  const bool is_old = connection.old > connection.allowed;
  const bool is_much = connection.stray > connection.allowed + static_cast<double>(options_.max_call_bytes);
  if (connection.is_reported || (!is_old && !is_much)) return;
  const double unforgivable = std::max(0.0, connection.stray - connection.forgivable);
  double& used = used_[options_.client_of(peer)];
  const auto most = static_cast<double>(options_.max_client_bytes);
  const bool is_forgiven = unforgivable == 0 && used + connection.stray <= most;
  used = std::min(most, used + connection.stray);
  if (is_forgiven) {
    connection.stray = connection.old = 0;
    connection.forgivable = connection.allowed;
    return;
  }
  Report(peer, unforgivable, connection);
}

void StrayGuard::Report(const std::string& peer, double bytes, Connection& connection) const {
  options_.on_flood(peer, static_cast<int64_t>(bytes));
  connection.is_reported = true;  // not if there was no memory to report it
}

bool StrayGuard::IsSuspect(const Connection& connection) {
  return !connection.is_reported && connection.old > kConnectionBytes;
}

void StrayGuard::JudgeBusyThreads(absl::Time now) {
  std::vector<std::map<std::string, Connection>::iterator> suspects;
  for (auto entry = connections_.begin(); entry != connections_.end(); ++entry) {
    if (IsSuspect(entry->second)) suspects.push_back(entry);
  }
  if (suspects.empty()) {
    quiet_since_ = absl::InfiniteFuture();
    return;
  }
  const bool is_quiet = looked_at_.empty() && quiet_since_ != absl::InfiniteFuture();
  if (is_quiet && now - quiet_since_ < kMostBusyTime) return;
  const absl::Time quiet_since = std::exchange(quiet_since_, now);
  const double bytes = std::exchange(quiet_bytes_, 0);
  const PollerThreads::Use use = options_.threads();
  if (!is_quiet || use.busy_share < kBusyShare || bytes > kBytesPerCpuSecond * use.cpu_seconds) return;
  bool is_found = false;
  for (const auto& suspect : suspects) {
    if (suspect->second.brought_at <= quiet_since) continue;
    Report(suspect->first, suspect->second.old, suspect->second);
    is_found = true;
  }
  if (is_found) return;
  const auto largest = *std::max_element(suspects.begin(), suspects.end(),
                                         [](const auto& a, const auto& b) { return a->second.old < b->second.old; });
  Report(largest->first, 0, largest->second);
}

void StrayGuard::JudgeClosed(const std::string& peer, const Connection& connection) {
  if (connection.is_reported || connection.stray <= kHandshakeBytes) return;
  double& used = used_[options_.client_of(peer)];
  const auto most = static_cast<double>(options_.max_client_bytes);
  const bool has_little_left = used > most / 2;
  used = std::min(most, used + connection.stray);
  if (has_little_left) options_.on_flood(peer, 0);
}

}  // namespace voxserve
