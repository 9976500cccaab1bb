#include "server/acceptor/flood_guard.h"

#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "server/sockets/peer.h"

namespace voxserve {
namespace {

using nlohmann::json;

// How fast the memory may grow without a look: caches and fragments of the allocator.
constexpr int64_t kQuietBytesPerSecond = int64_t{1} << 20;
constexpr intptr_t kMostSockets = 1 << 20;

// Takes the text that gRPC allocated; null where it is no JSON.
json Parsed(char* text) {
  if (text == nullptr) return {};
  const std::unique_ptr<char, void (*)(void*)> owner(text, gpr_free);
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// channelz writes numbers of 64 bits as text; 0 where there is none.
int64_t NumberAt(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return 0;
  if (found->is_number_integer()) return found->get<int64_t>();
  int64_t number = 0;
  if (found->is_string() && absl::SimpleAtoi(found->get_ref<const std::string&>(), &number)) return number;
  return 0;
}

// "" for what is no address of the Internet.
std::string PeerOfSocket(const json& socket) {
  const json address = socket.value("remote", json::object()).value("tcpip_address", json::object());
  std::string bytes;
  if (!absl::Base64Unescape(address.value("ip_address", std::string()), &bytes)) return "";
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
  for (const json& reference : sockets.value("socketRef", json::array())) {
    const json answer = Parsed(grpc_channelz_get_socket(static_cast<intptr_t>(NumberAt(reference, "socketId"))));
    const json socket = answer.value("socket", json::object());
    const std::string peer = PeerOfSocket(socket);
    if (!peer.empty()) (*started)[peer] = NumberAt(socket.value("data", json::object()), "streamsStarted");
  }
}

}  // namespace

FloodGuard::FloodGuard(Options options) : options_(std::move(options)), thread_([this] { Run(); }) {}

FloodGuard::~FloodGuard() {
  stopping_.Notify();
  thread_.join();
}

void FloodGuard::OnCall(const std::string& peer) {
  if (!is_looking_.load(std::memory_order_relaxed)) return;
  absl::MutexLock lock(&mutex_);
  ++seen_[peer];
}

void FloodGuard::Run() {
  const int64_t growth =
      std::max<int64_t>(1, absl::ToInt64Milliseconds(options_.interval)) * kQuietBytesPerSecond / 1000;
  int64_t usual = options_.resident_bytes() - options_.accounted_bytes();
  while (!stopping_.WaitForNotificationWithTimeout(options_.interval)) {
    const int64_t unaccounted = options_.resident_bytes() - options_.accounted_bytes();
    usual = std::min(usual + growth, unaccounted);
    if (unaccounted > usual + options_.trigger_bytes) {
      Look();
    } else if (is_looking_) {
      StopLooking();
    }
  }
}

void FloodGuard::Look() {
  const bool is_first = !is_looking_.exchange(true);
  std::map<std::string, int64_t> started = options_.streams_started();
  absl::flat_hash_map<std::string, int64_t> seen;
  {
    absl::MutexLock lock(&mutex_);
    seen.swap(seen_);
  }
  for (const auto& [peer, count] : started) {
    const auto last = started_.find(peer);
    // A connection that is new since the first look has started all its streams since.
    const int64_t before = last != started_.end() ? last->second : is_first ? count : 0;
    if (count - before - seen[peer] > options_.max_unseen_calls) options_.on_flood(peer);
  }
  started_ = std::move(started);
}

void FloodGuard::StopLooking() {
  is_looking_ = false;
  started_.clear();
  absl::MutexLock lock(&mutex_);
  seen_.clear();
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  if (!(file >> total >> resident)) return 0;
  return resident * sysconf(_SC_PAGESIZE);
}

std::map<std::string, int64_t> StreamsStarted() {
  std::map<std::string, int64_t> started;
  const json servers = Parsed(grpc_channelz_get_servers(0));
  for (const json& server : servers.value("server", json::array())) {
    AddSocketsOf(static_cast<intptr_t>(NumberAt(server.value("ref", json::object()), "serverId")), &started);
  }
  return started;
}

}  // namespace voxserve
