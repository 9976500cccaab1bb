#include "server/calls/client_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace voxserve::client_connections_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);
constexpr absl::Duration kGrace = absl::Seconds(60);

TEST(ClientConnectionsTest, AClientIsGoneWithItsLastConnection) {
  ClientConnections connections;
  connections.OnCall("a", "peer:1");
  connections.OnCall("a", "peer:1");
  connections.OnCall("a", "peer:2");
  EXPECT_THAT(connections.OnGone("peer:1", kStart), IsEmpty());
  EXPECT_FALSE(connections.ForgetGone("a", kStart + kGrace));
  EXPECT_THAT(connections.OnGone("peer:2", kStart), ElementsAre("a"));
  EXPECT_THAT(connections.OnGone("peer:2", kStart), IsEmpty());
  EXPECT_FALSE(connections.ForgetGone("a", kStart - absl::Seconds(1)));
  EXPECT_TRUE(connections.ForgetGone("a", kStart));
  EXPECT_FALSE(connections.ForgetGone("a", kStart)) << "it is told once";
}

TEST(ClientConnectionsTest, WhoComesAgainStays) {
  ClientConnections connections;
  connections.OnCall("a", "peer:1");
  EXPECT_THAT(connections.OnGone("peer:1", kStart), ElementsAre("a"));
  connections.OnCall("a", "peer:2");
  EXPECT_FALSE(connections.ForgetGone("a", kStart));
  EXPECT_THAT(connections.OnGone("peer:2", kStart + kGrace), ElementsAre("a"));
  EXPECT_FALSE(connections.ForgetGone("a", kStart)) << "the time counts from its last end";
  EXPECT_TRUE(connections.ForgetGone("a", kStart + kGrace));
}

// Behind one connection of a proxy there may be many clients with tokens.
TEST(ClientConnectionsTest, AConnectionMayBeOfSeveralClients) {
  ClientConnections connections;
  connections.OnCall("token:a", "peer:1");
  connections.OnCall("token:b", "peer:1");
  connections.OnCall("token:b", "peer:2");
  EXPECT_THAT(connections.OnGone("peer:1", kStart), ElementsAre("token:a"));
  connections.OnCall("token:a", "peer:3");
  connections.OnCall("token:b", "peer:3");
  EXPECT_THAT(connections.OnGone("peer:2", kStart), IsEmpty());
  EXPECT_THAT(connections.OnGone("peer:3", kStart), UnorderedElementsAre("token:a", "token:b"));
  EXPECT_THAT(connections.OnGone("peer:unknown", kStart), IsEmpty());
  EXPECT_FALSE(connections.ForgetGone("nobody", kStart));
}

}  // namespace
}  // namespace voxserve::client_connections_test
