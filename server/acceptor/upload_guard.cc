#include "server/acceptor/upload_guard.h"

#include <algorithm>
#include <utility>

#include "engine/base/steady_time.h"

namespace voxserve {
namespace {

constexpr int kUploadLookShare = 10;

// Returns the received bytes for which a message accounts: its own, 9 bytes for the header of each HTTP/2 frame
// (1/512 of the message covers frames of 4.5 KiB or more), and for a call's first message the headers of the call. A
// stream of small messages must not be credited with more than it sends, or it would hide a large message.
int64_t WithFrames(int64_t message_bytes, bool is_first) {
  return message_bytes + message_bytes / 512 + (is_first ? 512 : 16);
}

}  // namespace

UploadGuard::UploadGuard(Options options)
    : options_(std::move(options)), thread_(options_.interval, [this] {
        const absl::Time begin = SteadyNow();
        Look();
        return std::max(options_.interval, kUploadLookShare * (SteadyNow() - begin));
      }) {}

void UploadGuard::OnMessage(const std::string& peer, int64_t bytes, bool is_first) {
  absl::MutexLock lock(&mutex_);
  news_.message_bytes[peer] += WithFrames(bytes, is_first);
}

void UploadGuard::OnIdle(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  news_.idle.insert(peer);
}

void UploadGuard::Look() {
  const bool counts = std::exchange(is_whole_, false);
  News news;
  {
    absl::MutexLock lock(&mutex_);
    std::swap(news, news_);
  }
  // The received bytes are read after the messages, so that they include the bytes of all these messages.
  const std::map<std::string, SocketTraffic> all_traffic = options_.traffic();
  const absl::Time now = SteadyNow();
  Forget(std::max(absl::ZeroDuration(), now - std::exchange(last_look_, now)));
  std::map<std::string, Connection> connections;
  for (const auto& [peer, traffic] : all_traffic) {
    const auto before = connections_.find(peer);
    Connection connection = before != connections_.end() ? before->second : Connection();
    if (news.idle.contains(peer)) {
      connection.unfinished = 0;
    } else if (counts) {
      const auto finished = news.message_bytes.find(peer);
      const int64_t bytes = finished == news.message_bytes.end() ? 0 : finished->second;
      connection.unfinished += static_cast<double>(traffic.received - connection.received - bytes);
      const int64_t most = options_.num_reading(peer) * options_.max_call_bytes;
      connection.unfinished = std::clamp(connection.unfinished, 0.0, static_cast<double>(most));
    }
    connection.received = traffic.received;
    connections.emplace_hint(connections.end(), peer, connection);
  }
  connections_ = std::move(connections);
  is_whole_ = true;
  Judge();
}

void UploadGuard::Forget(absl::Duration since_last) {
  std::map<std::string, double> unfinished;  // by client
  for (const auto& [peer, connection] : connections_) unfinished[options_.client_of(peer)] += connection.unfinished;
  const double forgotten =
      static_cast<double>(options_.max_client_bytes) * absl::FDivDuration(since_last, options_.forget_time);
  for (auto& [peer, connection] : connections_) {
    const double all = unfinished.at(options_.client_of(peer));
    if (all > 0) connection.unfinished *= std::max(0.0, 1 - forgotten / all);
  }
}

void UploadGuard::Judge() const {
  struct Client {
    double unfinished = 0;
    std::pair<double, std::string> largest;  // unfinished bytes and peer of its largest connection
  };
  std::map<std::string, Client> clients;
  for (const auto& [peer, connection] : connections_) {
    Client& client = clients[options_.client_of(peer)];
    client.unfinished += connection.unfinished;
    client.largest = std::max(client.largest, {connection.unfinished, peer});
  }
  double all = 0;
  const Client* first = nullptr;
  for (const auto& [name, client] : clients) {
    all += client.unfinished;
    if (first == nullptr || client.unfinished > first->unfinished) first = &client;
  }
  if (all > static_cast<double>(options_.max_bytes) &&
      first->unfinished > static_cast<double>(options_.max_client_bytes)) {
    options_.on_flood(first->largest.second);
  }
}

}  // namespace voxserve
