#include "server/acceptor/flood_guard.h"

#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "engine/base/steady_time.h"
#include "server/grpc/grpc_version.h"
#include "server/sockets/peer.h"

namespace voxserve {
namespace {

using nlohmann::json;

// A second is calm if the unaccounted memory grows by less than this in it. Later growth is measured from the memory at
// the end of the last calm second.
constexpr int64_t kCalmGrowthBytes = int64_t{16} << 20;
// Looks take at most a tenth of the thread's time.
constexpr int kFloodLookShare = 10;
constexpr intptr_t kMostSockets = 1 << 20;

// Parses and frees text that gRPC allocated. Returns an empty object if the text is null or holds no JSON object. The
// text is null if its socket has disappeared since the query that listed it.
json Parsed(char* text) {
  if (text == nullptr) return json::object();
  const std::unique_ptr<char, void (*)(void*)> owner(text, gpr_free);
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed : json::object();
}

// Returns the object's member `key`, or `otherwise` if there is no such member or its type differs from `otherwise`.
json At(const json& object, const char* key, json otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->type() == otherwise.type() ? *found : otherwise;
}

// Returns the object's member `key`, which channelz writes as text if it has 64 bits. Returns 0 if it is no number.
int64_t NumberAt(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<int64_t>();
  int64_t number = 0;
  if (found->is_string() && absl::SimpleAtoi(found->get_ref<const std::string&>(), &number)) return number;
  return 0;
}

// Returns the peer of a socket that channelz describes, or "" if its remote address is not an Internet address.
std::string PeerOfSocket(const json& socket) {
  const json address = At(At(socket, "remote", json::object()), kChannelzTcpAddress, json::object());
  std::string bytes;
  const json text = At(address, kChannelzIpAddress, std::string());
  if (!absl::Base64Unescape(text.get_ref<const std::string&>(), &bytes)) return "";
  const in_port_t port = htons(static_cast<uint16_t>(NumberAt(address, "port")));
  sockaddr_storage storage = {};
  if (bytes.size() == sizeof(in_addr)) {
    auto& ipv4 = reinterpret_cast<sockaddr_in&>(storage);
    ipv4.sin_family = AF_INET;
    ipv4.sin_port = port;
    std::memcpy(&ipv4.sin_addr, bytes.data(), bytes.size());
  } else if (bytes.size() == sizeof(in6_addr)) {
    auto& ipv6 = reinterpret_cast<sockaddr_in6&>(storage);
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = port;
    std::memcpy(&ipv6.sin6_addr, bytes.data(), bytes.size());
  }
  return PeerOf(storage);
}

void AddSocketsOf(intptr_t server, std::map<std::string, int64_t>* started) {
  const json sockets = Parsed(grpc_channelz_get_server_sockets(server, 0, kMostSockets));
  for (const json& reference : At(sockets, "socketRef", json::array())) {
    const json answer = Parsed(grpc_channelz_get_socket(static_cast<intptr_t>(NumberAt(reference, "socketId"))));
    const json socket = At(answer, "socket", json::object());
    const std::string peer = PeerOfSocket(socket);
    if (!peer.empty()) (*started)[peer] = NumberAt(At(socket, "data", json::object()), "streamsStarted");
  }
}

}  // namespace

FloodGuard::FloodGuard(Options options)
    : options_(std::move(options)),
      calm_bytes_(UnaccountedBytes()),
      second_began_with_(calm_bytes_),
      thread_(options_.interval, [this] {
        LookAtMemory();
        return options_.interval;
      }) {}

void FloodGuard::OnCall(const std::string& peer) {
  if (!is_looking_.load(std::memory_order_relaxed)) return;
  absl::MutexLock lock(&mutex_);
  ++seen_[peer];
}

void FloodGuard::LookAtMemory() {
  const absl::Time now = options_.now();
  const int64_t unaccounted = UnaccountedBytes();
  calm_bytes_ = std::min(calm_bytes_, unaccounted);
  if (now - second_began_ >= absl::Seconds(1)) {
    if (unaccounted - second_began_with_ < kCalmGrowthBytes) calm_bytes_ = unaccounted;
    second_began_ = now;
    second_began_with_ = unaccounted;
  }
  if (unaccounted <= calm_bytes_ + options_.trigger_bytes) {
    if (is_looking_) StopLooking();
  } else if (now >= next_look_) {
    try {
      Look();
    } catch (const std::bad_alloc&) {
      StopLooking();  // The look has lost calls that were seen, so the next one begins a new series.
      throw;
    }
    next_look_ = now + kFloodLookShare * (options_.now() - now);
  }
}

void FloodGuard::Look() {
  const bool is_first = !is_looking_.exchange(true);
  const std::map<std::string, int64_t> started = options_.streams_started();
  absl::flat_hash_map<std::string, int64_t> seen;
  {
    absl::MutexLock lock(&mutex_);
    seen.swap(seen_);
  }
  std::map<std::string, Connection> connections;
  for (const auto& [peer, count] : started) {
    const auto before = connections_.find(peer);
    // Streams of a connection that exists at the first look are counted from that look on; streams of a later
    // connection from its beginning.
    Connection connection = before != connections_.end() ? before->second : Connection{.started = is_first ? count : 0};
    connection.unseen += count - connection.started - seen[peer];
    connection.started = count;
    if (connection.unseen > options_.max_unseen_calls) options_.on_flood(peer);
    connections.emplace(peer, connection);
  }
  connections_ = std::move(connections);
}

void FloodGuard::StopLooking() {
  is_looking_ = false;
  connections_.clear();
  absl::MutexLock lock(&mutex_);
  seen_.clear();
}

std::map<std::string, int64_t> StreamsStarted() {
  std::map<std::string, int64_t> started;
  const json servers = Parsed(grpc_channelz_get_servers(0));
  for (const json& server : At(servers, "server", json::array())) {
    AddSocketsOf(static_cast<intptr_t>(NumberAt(At(server, "ref", json::object()), "serverId")), &started);
  }
  return started;
}

}  // namespace voxserve
