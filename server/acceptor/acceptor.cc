#include "server/acceptor/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/time/clock.h"
#include "engine/base/logging.h"
#include "engine/base/steady_time.h"
#include "server/acceptor/first_bytes.h"
#include "server/sockets/descriptor_limit.h"
#include "server/sockets/listen.h"
#include "server/sockets/listen_error.h"
#include "server/sockets/peer.h"
#include "server/sockets/proxy_header.h"
#include "server/sockets/socket_traffic.h"

namespace voxserve {
namespace {

constexpr int64_t kMaxDefaultConnections = 10'000;
constexpr int64_t kDescriptorsPerConnection = 2;
constexpr int64_t kReservedDescriptors = 256;  // for models, plans, HTTP, and calls that outlive their connection
constexpr int64_t kClientShare = 4;            // by default, a client may have a quarter of all connections

constexpr int kMaxAcceptsPerTurn = 64;  // then other work gets its turn
constexpr int kMaxEvents = 64;
constexpr int64_t kMaxWithoutProxyHeader = 64;  // proxies' connections beyond the limit, until their clients are known
constexpr std::chrono::milliseconds kPause(100);  // pause after which accepting is tried again
// The pause after which on_gone is called again where it found no memory.
constexpr std::chrono::milliseconds kTellPause(10);

// The number that epoll reports with an event: the index of a listener, kWakeUp, or the id of a connection, from
// kFirstConnection on.
constexpr uint64_t kWakeUp = 1'000;
constexpr uint64_t kFirstConnection = 1'001;

int64_t DefaultMaxConnections() {
  const int64_t limit = DescriptorLimit();
  const int64_t left = limit - std::min(kReservedDescriptors, limit / 4);
  return std::clamp<int64_t>(left / kDescriptorsPerConnection, 1, kMaxDefaultConnections);
}

Acceptor::Options Resolved(Acceptor::Options options) {
  if (options.max_connections <= 0) options.max_connections = DefaultMaxConnections();
  if (options.max_client_connections <= 0) {
    options.max_client_connections = std::max<int64_t>(1, options.max_connections / kClientShare);
  }
  return options;
}

bool Watch(int epoll, int operation, int descriptor, uint64_t id, uint32_t events) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll, operation, descriptor, &event) == 0;
}

// Returns true for errors of accept(2) that concern a single connection; the next one may be fine.
bool IsErrorOfConnection(int error) {
  constexpr std::array kErrors = {ECONNABORTED, EINTR,        EPROTO,     EPERM,  ENETDOWN,   ENOPROTOOPT,
                                  EHOSTDOWN,    EHOSTUNREACH, EOPNOTSUPP, ENONET, ENETUNREACH};
  return std::find(kErrors.begin(), kErrors.end(), error) != kErrors.end();
}

// Returns an empty descriptor and sets errno if no connection waits at the listener or accept fails.
Descriptor AcceptOne(int listener, sockaddr_storage* address) {
  socklen_t size = sizeof(*address);
  return Descriptor(accept4(listener, reinterpret_cast<sockaddr*>(address), &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

Descriptor OpenSpare() { return Descriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// Runs the function. Returns false if it threw std::bad_alloc.
template <typename Run>
bool HasMemoryFor(const Run& run) {
  try {
    run();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Makes close drop the socket's unsent data and reset the connection, so that the system keeps no state of it.
void DropUnsent(const Descriptor& socket) {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const Options& options) {
  absl::StatusOr<std::vector<Descriptor>> listeners = ListenOn(options.host, options.port);
  if (!listeners.ok()) {
    return ListenError(options.what, options.host, options.port, options.port_flag,
                       std::string(listeners.status().message()), options.host_flag);
  }
  Descriptor epoll(epoll_create1(EPOLL_CLOEXEC));
  Descriptor wake_up(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  bool is_watched = epoll && wake_up && Watch(epoll.get(), EPOLL_CTL_ADD, wake_up.get(), kWakeUp, EPOLLIN);
  for (size_t i = 0; i < listeners->size(); ++i) {
    const int listener = (*listeners)[i].get();
    const int yes = 1;
    const int timeout_ms = static_cast<int>(absl::ToInt64Milliseconds(options.unacknowledged_timeout));
    setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    setsockopt(listener, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
    is_watched = is_watched && Watch(epoll.get(), EPOLL_CTL_ADD, listener, i, EPOLLIN);
  }
  if (!is_watched) {
    return ListenError(options.what, options.host, options.port, options.port_flag, std::strerror(errno),
                       options.host_flag);
  }
  return std::unique_ptr<Acceptor>(
      new Acceptor(Resolved(options), std::move(*listeners), std::move(epoll), std::move(wake_up)));
}

Acceptor::Acceptor(const Options& options, std::vector<Descriptor> listeners, Descriptor epoll, Descriptor wake_up)
    : options_(options),
      port_(PortOf(listeners.front())),
      epoll_(std::move(epoll)),
      wake_up_(std::move(wake_up)),
      listeners_(std::move(listeners)),
      spare_(OpenSpare()),
      next_id_(kFirstConnection),
      places_(options.places) {}

Acceptor::~Acceptor() { EndThread(); }

void Acceptor::EndThread() {
  Stop();
  end_ = true;
  WakeUp();
  if (thread_.joinable()) thread_.join();
}

void Acceptor::Start(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc) {
  grpc_ = std::move(grpc);
  thread_ = std::thread([this] { Run(); });
}

void Acceptor::Stop() {
  if (!thread_.joinable()) return listeners_.clear();
  stop_ = true;
  WakeUp();
  stopped_.WaitForNotification();
}

void Acceptor::WakeUp() { eventfd_write(wake_up_.get(), 1); }

void Acceptor::EndAll() {
  absl::MutexLock lock(&mutex_);
  for (auto& [id, connection] : connections_) {
    if (!connection.is_waiting) shutdown(connection.socket.get(), SHUT_WR);
  }
}

bool Acceptor::Close(const std::string& peer, std::string_view reason) {
  bool is_closed = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto [begin, end] = ids_by_peer_.equal_range(peer);
    for (auto id = begin; id != end; ++id) is_closed |= End(connections_.at(id->second));
  }
  if (is_closed) Report(peer, reason);
  return is_closed;
}

std::map<std::string, SocketTraffic> Acceptor::TakeTraffic() {
  absl::MutexLock lock(&mutex_);
  std::map<std::string, SocketTraffic> traffic = std::exchange(ended_, {});
  for (const auto& [id, connection] : connections_) {
    if (!connection.is_waiting) traffic[connection.peer] = TrafficOf(connection.socket.get());
  }
  return traffic;
}

int64_t Acceptor::TakeReceivedBytes(const std::string& peer) {
  int64_t taken = 0;
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = ids_by_peer_.equal_range(peer);
  for (auto id = begin; id != end; ++id) {
    Connection& connection = connections_.at(id->second);
    const int64_t received = TrafficOf(connection.socket.get()).received;
    taken += std::max<int64_t>(0, received - std::exchange(connection.taken_bytes, received));
  }
  return taken;
}

// Resets the connection. The acceptor's thread then sees EPOLLHUP and removes the connection from its tables. Returns
// false if End was called for the connection before.
bool Acceptor::End(Connection& connection) {
  if (std::exchange(connection.is_closing, true)) return false;
  DropUnsent(connection.socket);
  // Connecting to AF_UNSPEC resets the connection and drops the bytes that it has received. After a shutdown alone,
  // gRPC would still read these bytes.
  const sockaddr nobody = {.sa_family = AF_UNSPEC, .sa_data = {}};
  connect(connection.socket.get(), &nobody, sizeof(nobody));
  shutdown(connection.socket.get(), SHUT_RDWR);
  return true;
}

void Acceptor::OnCall(const std::string& peer) {
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = ids_by_peer_.equal_range(peer);
  for (auto entry = begin; entry != end; ++entry) connections_.at(entry->second).has_called = true;
}

int64_t Acceptor::open_connections() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(connections_.size());
}

void Acceptor::Report(std::string_view peer, std::string_view reason) {
  if (const std::optional<int64_t> left_out = log_limiter_.Admit(reason); left_out.has_value()) {
    Log(LogLevel::kWarning, "connection closed", {{"peer", peer}, {"reason", reason}, {"left_out", *left_out}});
  }
  if (options_.on_closed) options_.on_closed(reason);
}

void Acceptor::Run() {
  std::array<epoll_event, kMaxEvents> events;
  while (!end_) {
    const int num_events = epoll_wait(epoll_.get(), events.data(), kMaxEvents, TimeoutMs());
    for (int i = 0; i < num_events; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id >= kFirstConnection) {
        if (!HasMemoryFor([&] { OnEvent(id, events[i].events); })) DropWithoutMemory(id);
      } else if (id == kWakeUp) {
        eventfd_t count = 0;
        eventfd_read(wake_up_.get(), &count);
      } else if (!stop_ && !HasMemoryFor([&] { AcceptFrom(listeners_[id].get()); })) {
        PauseAccepting(ENOMEM);
      }
    }
    HasMemoryFor([this] { CloseSilentConnections(); });
    HasMemoryFor([this] { TellGone(); });
    if (is_paused_ && Clock::now() >= resume_at_) ResumeAccepting();
    if (stop_ && !stopped_.HasBeenNotified()) {
      StopListening();
      stopped_.Notify();
    }
  }
}

void Acceptor::StopListening() {
  listeners_.clear();
  is_paused_ = false;
  while (const std::optional<Id> waiting = places_.OldestWaiting()) Remove(*waiting);
}

int Acceptor::TimeoutMs() const {
  std::optional<Clock::time_point> wake_up;
  if (is_paused_) wake_up = resume_at_;
  if (!untold_.empty()) wake_up = Clock::now() + kTellPause;
  if (const std::optional<Id> oldest = places_.OldestWaiting()) {
    absl::MutexLock lock(&mutex_);
    const Clock::time_point first_bytes_by = connections_.at(*oldest).first_bytes_by;
    wake_up = std::min(first_bytes_by, wake_up.value_or(first_bytes_by));
  }
  if (!wake_up.has_value()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*wake_up - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void Acceptor::AcceptFrom(int listener) {
  for (int i = 0; i < kMaxAcceptsPerTurn; ++i) {
    sockaddr_storage address = {};
    Descriptor socket = AcceptOne(listener, &address);
    if (!socket) {
      int error = errno;
      if (error == EMFILE || error == ENFILE) error = RefuseWithSpare(listener);
      if (error == 0 || IsErrorOfConnection(error)) continue;
      if (error != EAGAIN) PauseAccepting(error);
      return;
    }
    std::string peer = PeerOf(address);
    std::string client = ClientOf(peer);
    const bool is_of_proxy = std::any_of(options_.trusted_proxies.begin(), options_.trusted_proxies.end(),
                                         [&](const Network& network) { return network.Contains(address); });
    // For a proxy's connection, the client is known only when the proxy header has come. The limits hold from then on.
    const int64_t limit = options_.max_connections + (is_of_proxy ? kMaxWithoutProxyHeader : 0);
    if ((is_of_proxy || MakeRoomForClient(client, peer)) && MakeRoomInAll(client, peer, limit)) {
      Add(std::move(socket), std::move(peer), std::move(client), is_of_proxy);
    } else {
      DropUnsent(socket);
    }
  }
}

// Frees the spare descriptor to accept a connection and close it at once. Returns 0, or the errno of a failed accept.
int Acceptor::RefuseWithSpare(int listener) {
  spare_.Reset();
  sockaddr_storage address = {};
  Descriptor socket = AcceptOne(listener, &address);
  const int error = socket ? 0 : errno;
  if (socket) {
    DropUnsent(socket);
    socket.Reset();
    Report(PeerOf(address), connection_reason::kNoDescriptors);
  }
  spare_ = OpenSpare();
  return error;
}

void Acceptor::PauseAccepting(int error) {
  HasMemoryFor([&] {
    if (log_limiter_.Admit("pause").has_value()) {
      Log(LogLevel::kWarning, "connections wait: the system cannot accept one now", {{"error", std::strerror(error)}});
    }
  });
  for (size_t i = 0; i < listeners_.size(); ++i) Watch(epoll_.get(), EPOLL_CTL_MOD, listeners_[i].get(), i, 0);
  is_paused_ = true;
  resume_at_ = Clock::now() + kPause;
}

void Acceptor::ResumeAccepting() {
  if (!spare_) spare_ = OpenSpare();
  for (size_t i = 0; i < listeners_.size(); ++i) Watch(epoll_.get(), EPOLL_CTL_MOD, listeners_[i].get(), i, EPOLLIN);
  is_paused_ = false;
}

// Makes room for one more connection of the client: at the client's limit it closes the client's oldest connection that
// has not sent its first bytes. Returns false, and reports the refusal, if there is no such connection, or if
// is_welcome refuses the client.
bool Acceptor::MakeRoomForClient(const std::string& client, std::string_view peer) {
  if (options_.is_welcome && !options_.is_welcome(client)) {
    Report(peer, connection_reason::kUnfinishedCalls);
    return false;
  }
  if (places_.NumOf(client) < options_.max_client_connections) return true;
  const std::optional<Id> chosen = places_.OldestWaitingOf(client);
  if (!chosen.has_value()) {
    Report(peer, connection_reason::kClientLimit);
    return false;
  }
  CloseWaiting(*chosen, connection_reason::kClientLimit);
  return true;
}

// Makes room for one more connection if `limit` are open: it closes the one that gives way. Returns false, and reports
// the refusal, if none does.
bool Acceptor::MakeRoomInAll(const std::string& client, std::string_view peer, int64_t limit) {
  if (open_connections() < limit) return true;
  const std::optional<Id> chosen = places_.WhoGivesWay(client, SteadyNow(), [this](Id id) { return IdleSince(id); });
  if (!chosen.has_value()) {
    Report(peer, connection_reason::kConnectionLimit);
    return false;
  }
  std::string closed;
  bool is_new_end = false;
  {
    absl::MutexLock lock(&mutex_);
    Connection& connection = connections_.at(*chosen);
    closed = connection.peer;
    is_new_end = End(connection);
  }
  Remove(*chosen);
  if (is_new_end) Report(closed, connection_reason::kConnectionLimit);
  return true;
}

absl::Time Acceptor::IdleSince(Id id) const {
  std::string peer;
  absl::Time since;
  {
    absl::MutexLock lock(&mutex_);
    const Connection& connection = connections_.at(id);
    since = connection.idle_since;
    if (connection.is_waiting || connection.is_closing) return since;
    peer = connection.peer;
  }
  return options_.idle_since ? std::max(since, options_.idle_since(peer)) : since;
}

bool Acceptor::IsOpen(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  return ids_by_peer_.count(peer) > 0;
}

void Acceptor::SetInUse(const std::string& peer, absl::Time until) {
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = ids_by_peer_.equal_range(peer);
  for (auto id = begin; id != end; ++id) connections_.at(id->second).idle_since = until;
}

void Acceptor::Add(Descriptor socket, std::string peer, std::string client, bool is_of_proxy) {
  const Id id = next_id_++;
  // Edge-triggered: incomplete first bytes do not wake the thread again until more arrive.
  if (!Watch(epoll_.get(), EPOLL_CTL_ADD, socket.get(), id, EPOLLIN | EPOLLRDHUP | EPOLLET)) {
    return Report(peer, connection_reason::kNoDescriptors);
  }
  Connection* connection = nullptr;
  int64_t open = 0;
  {
    absl::MutexLock lock(&mutex_);
    std::list<std::string> gone = {peer};
    const auto added = connections_.emplace(
        id, Connection{.socket = std::move(socket),
                       .peer = std::move(peer),
                       .client = std::move(client),
                       .gone = std::move(gone),
                       .first_bytes_by = Clock::now() + absl::ToChronoMilliseconds(options_.first_bytes_timeout),
                       .idle_since = SteadyNow(),
                       .awaits_proxy_header = is_of_proxy});
    connection = &added.first->second;
    open = static_cast<int64_t>(connections_.size());
  }
  try {
    {
      absl::MutexLock lock(&mutex_);
      ids_by_peer_.emplace(connection->peer, id);
    }
    places_.Add(id, connection->client, SteadyNow());
    if (options_.on_open_connections) options_.on_open_connections(open);
  } catch (const std::bad_alloc&) {
    Remove(id);
    throw;
  }
}

// Ends a connection for whose event there was no memory. Its client may connect again; the event will not come again.
void Acceptor::DropWithoutMemory(Id id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    End(found->second);
  }
  Remove(id);
}

void Acceptor::OnEvent(Id id, uint32_t events) {
  Connection* connection = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;  // an earlier event of the same round closed it
    connection = &found->second;
  }
  if ((events & EPOLLHUP) != 0) {
    RemoveEnded(id, *connection);
  } else if (connection->is_waiting) {
    ReadFirstBytes(id, *connection);
  }
}

// Returns true if the connection's client is known: the proxy header has been read, or the connection begins without
// one. Returns false if a part of the header has not come yet, or if the connection has been closed.
bool Acceptor::ReadProxyHeader(Id id, Connection& connection) {
  std::array<char, kMaxProxyHeaderBytes> bytes;
  const ssize_t size = recv(connection.socket.get(), bytes.data(), bytes.size(), MSG_PEEK);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (size <= 0) {
    RemoveEnded(id, connection);  // the proxy has closed the connection
    return false;
  }
  const ProxyHeader header = ParseProxyHeader({bytes.data(), static_cast<size_t>(size)});
  if (header.state == ProxyHeaderState::kIncomplete) return false;
  if (header.state == ProxyHeaderState::kBroken) {
    CloseWaiting(id, connection_reason::kProxyHeader);
    return false;
  }
  // Takes the header out of the socket, since gRPC must not see it. The whole header has arrived, so recv returns all
  // of its bytes.
  if (header.bytes > 0) recv(connection.socket.get(), bytes.data(), header.bytes, 0);
  connection.awaits_proxy_header = false;
  return CountForSource(id, connection, header.peer);
}

// From now on the connection counts for the client that its proxy names, or for the proxy itself if source is "".
// Returns false if that client may have no further connection; the connection is closed then.
bool Acceptor::CountForSource(Id id, Connection& connection, const std::string& source) {
  options_.proxied_peers->Set(connection.peer, source);
  std::string client = ClientOf(source.empty() ? connection.peer : source);
  // The connection must not be closed to make room for itself, so it is not counted while room is made for its client.
  places_.Remove(id, connection.client);
  const std::string_view peer = source.empty() ? connection.peer : source;
  const bool has_room = MakeRoomForClient(client, peer) && MakeRoomInAll(client, peer, options_.max_connections + 1);
  {
    absl::MutexLock lock(&mutex_);
    connection.client.swap(client);
  }
  places_.Add(id, connection.client, SteadyNow());
  if (has_room) return true;
  {
    absl::MutexLock lock(&mutex_);
    DropUnsent(connection.socket);
  }
  Remove(id);
  return false;
}

// Peeks at the first bytes; they stay in the socket for gRPC.
void Acceptor::ReadFirstBytes(Id id, Connection& connection) {
  if (connection.awaits_proxy_header && !ReadProxyHeader(id, connection)) return;
  std::array<char, kMostFirstBytes> bytes;
  const ssize_t size = recv(connection.socket.get(), bytes.data(), bytes.size(), MSG_PEEK);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return RemoveEnded(id, connection);  // the client has closed the connection
  const std::string_view received(bytes.data(), static_cast<size_t>(size));
  switch (options_.has_tls ? CheckTls(received) : CheckHttp2(received)) {
    case FirstBytes::kIncomplete:
      return;
    case FirstBytes::kGood:
      return HandOver(id, connection);
    case FirstBytes::kBad:
      return CloseWaiting(id, options_.has_tls ? connection_reason::kNotTls : connection_reason::kNotHttp2);
  }
}

void Acceptor::HandOver(Id id, Connection& connection) {
  Descriptor duplicate(fcntl(connection.socket.get(), F_DUPFD_CLOEXEC, 0));
  // From now on only EPOLLHUP matters, which epoll always reports.
  if (!duplicate || !Watch(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), id, EPOLLET)) {
    return CloseWaiting(id, connection_reason::kNoDescriptors);
  }
  {
    absl::MutexLock lock(&mutex_);  // TakeTraffic reads the connection
    connection.is_waiting = false;
    connection.idle_since = SteadyNow();
  }
  places_.EndWait(id, connection.client);
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  // Only Stop closes the listening sockets, and after it no connection is handed over.
  parameters.listener_fd = listeners_.front().get();
  parameters.fd = duplicate.Release();
  grpc_->HandleNewConnection(&parameters);
}

void Acceptor::CloseSilentConnections() {
  const Clock::time_point now = Clock::now();
  while (const std::optional<Id> oldest = places_.OldestWaiting()) {
    {
      absl::MutexLock lock(&mutex_);
      if (connections_.at(*oldest).first_bytes_by > now) return;
    }
    CloseWaiting(*oldest, connection_reason::kNoFirstBytes);
  }
}

void Acceptor::CloseWaiting(Id id, std::string_view reason) {
  {
    absl::MutexLock lock(&mutex_);
    DropUnsent(connections_.at(id).socket);
  }
  Report(Remove(id), reason);
}

// Removes a connection that its client or gRPC has ended.
void Acceptor::RemoveEnded(Id id, const Connection& connection) {
  std::string_view reason;
  {
    absl::MutexLock lock(&mutex_);
    if (connection.is_waiting) {
      reason = unused_connection::kNoFirstBytes;
    } else if (!connection.has_called && !connection.is_closing && !stop_) {
      reason = unused_connection::kNoCall;
    }
  }
  Remove(id);
  if (!reason.empty() && options_.on_unused) options_.on_unused(reason);
}

// Removes a connection from all tables, and returns its peer. Does not throw: what finds no memory is not told, except
// to on_gone, which is then called later.
std::string Acceptor::Remove(Id id) {
  Connection removed;
  int64_t open = 0;
  {
    absl::MutexLock lock(&mutex_);
    auto node = connections_.extract(id);
    removed = std::move(node.mapped());
    try {
      if (!removed.is_waiting) ended_[removed.peer] = TrafficOf(removed.socket.get());
    } catch (const std::bad_alloc&) {  // then the guards miss its last bytes
    }
    const auto [begin, end] = ids_by_peer_.equal_range(removed.peer);
    const auto own = std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; });
    if (own != end) ids_by_peer_.erase(own);
    open = static_cast<int64_t>(connections_.size());
  }
  places_.Remove(id, removed.client);
  removed.socket.Reset();  // closed before the hooks are told
  if (!removed.is_waiting) untold_.splice(untold_.end(), removed.gone);
  HasMemoryFor([&] {
    if (options_.on_open_connections) options_.on_open_connections(open);
  });
  HasMemoryFor([this] { TellGone(); });
  return std::move(removed.peer);
}

void Acceptor::TellGone() {
  while (!untold_.empty()) {
    if (options_.on_gone) options_.on_gone(untold_.front());
    untold_.pop_front();
  }
}

}  // namespace voxserve
