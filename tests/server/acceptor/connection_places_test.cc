#include "server/acceptor/connection_places.h"

#include <gtest/gtest.h>

#include <map>
#include <new>
#include <optional>
#include <string>

#include "tests/support/failing_heap.h"

namespace voxserve::connection_places_test {
namespace {

class ConnectionPlacesTest : public testing::Test {
 protected:
  using Id = ConnectionPlaces::Id;

  void Add(Id id, const std::string& client) {
    places_.Add(id, client, now_);
    idle_since_[id] = now_;
  }
  std::optional<Id> WhoGivesWay(const std::string& newcomer) {
    return places_.WhoGivesWay(newcomer, now_, [this](Id id) { return idle_since_.at(id); });
  }

  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  std::map<Id, absl::Time> idle_since_;
  ConnectionPlaces places_{SharedPlaces::Options{}};
};

TEST_F(ConnectionPlacesTest, TheOldestWaitsFirst) {
  EXPECT_EQ(places_.OldestWaiting(), std::nullopt);
  Add(1, "10.0.0.1");
  Add(2, "10.0.0.2");
  Add(3, "10.0.0.2");
  EXPECT_EQ(places_.OldestWaiting(), 1);
  EXPECT_EQ(places_.OldestWaitingOf("10.0.0.2"), 2);
  EXPECT_EQ(places_.OldestWaitingOf("10.0.0.3"), std::nullopt);
  places_.EndWait(1, "10.0.0.1");
  places_.EndWait(2, "10.0.0.2");
  EXPECT_EQ(places_.OldestWaiting(), 3);
  EXPECT_EQ(places_.OldestWaitingOf("10.0.0.1"), std::nullopt);
  EXPECT_EQ(places_.OldestWaitingOf("10.0.0.2"), 3);
}

TEST_F(ConnectionPlacesTest, AConnectionCountsForItsClientUntilItIsRemoved) {
  Add(1, "10.0.0.1");
  Add(2, "10.0.0.1");
  places_.EndWait(1, "10.0.0.1");
  EXPECT_EQ(places_.NumOf("10.0.0.1"), 2);
  EXPECT_EQ(places_.NumOf("10.0.0.2"), 0);
  for (int i = 0; i < 2; ++i) places_.Remove(1, "10.0.0.1");
  EXPECT_EQ(places_.NumOf("10.0.0.1"), 1);
  places_.Remove(2, "10.0.0.1");
  EXPECT_EQ(places_.NumOf("10.0.0.1"), 0);
  EXPECT_EQ(places_.OldestWaiting(), std::nullopt);
}

TEST_F(ConnectionPlacesTest, WhoHasSentNothingForASecondGivesWay) {
  Add(1, "10.0.0.1");
  places_.EndWait(1, "10.0.0.1");
  idle_since_[1] = absl::InfiniteFuture();
  Add(2, "10.0.0.2");
  now_ += absl::Milliseconds(999);
  EXPECT_EQ(WhoGivesWay("10.0.0.3"), std::nullopt);
  now_ += absl::Milliseconds(1);
  EXPECT_EQ(WhoGivesWay("10.0.0.3"), 2);
  places_.EndWait(2, "10.0.0.2");
  EXPECT_EQ(WhoGivesWay("10.0.0.3"), std::nullopt) << "it waits no longer";
}

TEST_F(ConnectionPlacesTest, AnIdlePlaceGivesWayBeforeASilentOne) {
  Add(1, "10.0.0.1");
  now_ += absl::Seconds(5);
  Add(2, "10.0.0.2");
  Add(3, "10.0.0.2");
  places_.EndWait(2, "10.0.0.2");
  places_.EndWait(3, "10.0.0.2");
  now_ += absl::Seconds(2);
  EXPECT_EQ(WhoGivesWay("10.0.0.3"), 2) << "10.0.0.2 has two places more than the newcomer";
}

TEST_F(ConnectionPlacesTest, RemovingUndoesWhatAFailedAllocationLeft) {
  for (const std::string client : {"a client with a name that needs memory", "10.0.0.1", "2001:db8:1:2::"}) {
    SCOPED_TRACE(client);
    int num_failed = -1;
    for (bool has_failed = true; has_failed;) {
      ASSERT_LT(++num_failed, 100);
      ConnectionPlaces places{SharedPlaces::Options{}};
      has_failed = false;
      support::FailAllocation(num_failed);
      try {
        places.Add(1, client, now_);
      } catch (const std::bad_alloc&) {
        has_failed = true;
      }
      support::FailAllocation(0);
      places.Remove(1, client);
      const bool has_allocated = support::HasFailed();
      support::FailAllocation(-1);
      EXPECT_FALSE(has_allocated) << "Remove allocates nothing";
      EXPECT_EQ(places.NumOf(client), 0) << num_failed;
      EXPECT_EQ(places.OldestWaiting(), std::nullopt) << num_failed;
      EXPECT_EQ(places.OldestWaitingOf(client), std::nullopt) << num_failed;
    }
    EXPECT_GT(num_failed, 3);
  }
}

}  // namespace
}  // namespace voxserve::connection_places_test
