#pragma once

// AcceptorTest is the fixture of the tests of Acceptor. It runs an acceptor on loopback. FakeGrpc takes gRPC's place
// and gives the accepted connections to a Keeper.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "server/acceptor/acceptor.h"
#include "tests/server/acceptor/raw_client.h"

namespace voxserve {

// Owns the connections that the acceptor gives to gRPC, in the order of their arrival. Thread-safe.
class Keeper {
 public:
  void Keep(int descriptor) {
    absl::MutexLock lock(&mutex_);
    kept_.emplace_back(descriptor);
  }

  // Blocks until at least `count` connections have arrived. Returns false after the timeout.
  bool Await(size_t count, absl::Duration timeout = kLong) {
    absl::MutexLock lock(&mutex_);
    const auto is_reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return kept_.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&is_reached), timeout);
  }

  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return kept_.size();
  }

  // Returns the descriptor of connection `i`, which the Keeper still owns.
  int at(size_t i) const {
    absl::MutexLock lock(&mutex_);
    return kept_.at(i).get();
  }

  // Shuts down and closes connection `i`, as gRPC does at the end of a connection.
  void LetGo(size_t i) {
    absl::MutexLock lock(&mutex_);
    shutdown(kept_.at(i).get(), SHUT_RDWR);
    kept_.at(i).Reset();
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<Descriptor> kept_ ABSL_GUARDED_BY(mutex_);
};

class FakeGrpc final : public grpc::experimental::ExternalConnectionAcceptor {
 public:
  explicit FakeGrpc(Keeper* keeper) : keeper_(keeper) {}
  void HandleNewConnection(NewConnectionParameters* parameters) override { keeper_->Keep(parameters->fd); }

 private:
  Keeper* const keeper_;
};

class AcceptorTest : public testing::Test {
 protected:
  void StartWith(Acceptor::Options options) {
    options.host = "127.0.0.1";
    auto acceptor = Acceptor::Listen(watcher_.Watching(std::move(options)));
    ASSERT_TRUE(acceptor.ok()) << acceptor.status();
    acceptor_ = *std::move(acceptor);
    acceptor_->Start(std::make_unique<FakeGrpc>(&keeper_));
  }

  int port() const { return acceptor_->port(); }

  // Returns a client whose connection has reached the Keeper. from: the client's own address.
  RawClient Established(const std::string& from = "127.0.0.1") {
    const size_t before = keeper_.size();
    RawClient client = RawClient::To(port(), from);
    client.Send(kPreface);
    EXPECT_TRUE(keeper_.Await(before + 1));
    return client;
  }

  Keeper keeper_;
  Watcher watcher_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace voxserve
