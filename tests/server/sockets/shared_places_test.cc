#include "server/sockets/shared_places.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace voxserve::shared_places_test {
namespace {

constexpr absl::Duration kSoon = absl::Seconds(1);
constexpr absl::Duration kLong = absl::Seconds(10);

// Places whose idle times the test sets; the clock stands at `now`.
class SharedPlacesTest : public testing::Test {
 protected:
  // Adds `count` places of a client, which are idle from now on. Returns the first one's id.
  SharedPlaces::Id Hold(const std::string& client, int count = 1) {
    const SharedPlaces::Id first = next_id_;
    for (int i = 0; i < count; ++i) {
      places_.Add(client, next_id_, now_);
      idle_since_[next_id_++] = now_;
    }
    return first;
  }
  void Use(SharedPlaces::Id id) { idle_since_[id] = absl::InfiniteFuture(); }
  void EndUse(SharedPlaces::Id id) { idle_since_[id] = now_; }
  void Pass(absl::Duration time) { now_ += time; }
  std::optional<SharedPlaces::Id> WhoGivesWay(const std::string& newcomer) {
    return places_.WhoGivesWay(newcomer, now_, [this](SharedPlaces::Id id) { return idle_since_.at(id); });
  }

  SharedPlaces places_{{.over_share_idle = kSoon, .any_idle = kLong}};
  std::map<SharedPlaces::Id, absl::Time> idle_since_;
  SharedPlaces::Id next_id_ = 1;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(SharedPlacesTest, NobodyGivesWayWhereNobodyIs) {
  EXPECT_EQ(WhoGivesWay("10.0.0.1"), std::nullopt);
  EXPECT_EQ(places_.size(), 0);
}

TEST_F(SharedPlacesTest, TheLongestIdlePlaceOfTheLargestClientGivesWay) {
  Hold("10.0.0.1", 2);
  Pass(kSoon);
  const SharedPlaces::Id large = Hold("10.0.0.2", 3);
  Pass(kSoon);
  EXPECT_EQ(WhoGivesWay("10.0.0.3"), large);
  Use(large);
  EXPECT_EQ(WhoGivesWay("10.0.0.3"), large + 1);
  EndUse(large);
  EXPECT_EQ(WhoGivesWay("10.0.0.3"), large + 1) << "the other has been idle for longer";
}

TEST_F(SharedPlacesTest, APlaceThatIsIdleForAMomentStays) {
  Hold("10.0.0.1", 4);
  Pass(kSoon - absl::Milliseconds(1));
  EXPECT_EQ(WhoGivesWay("10.1.0.1"), std::nullopt);
  Pass(absl::Milliseconds(1));
  EXPECT_TRUE(WhoGivesWay("10.1.0.1").has_value());
}

TEST_F(SharedPlacesTest, PlacesInUseNeverGiveWay) {
  const SharedPlaces::Id first = Hold("10.0.0.1", 5);
  for (int i = 0; i < 5; ++i) Use(first + i);
  Pass(absl::Hours(10));
  EXPECT_EQ(WhoGivesWay("10.1.0.1"), std::nullopt);
  EndUse(first + 3);
  EXPECT_EQ(WhoGivesWay("10.1.0.1"), std::nullopt) << "it has just been of use";
  Pass(kSoon);
  EXPECT_EQ(WhoGivesWay("10.1.0.1"), first + 3);
}

TEST_F(SharedPlacesTest, WithoutAnyTimeASearchAmongPlacesInUseEnds) {
  SharedPlaces places({.over_share_idle = absl::ZeroDuration(), .any_idle = absl::ZeroDuration()});
  for (int i = 0; i < 3; ++i) places.Add("10.0.0.1", i, now_);
  EXPECT_EQ(places.WhoGivesWay("10.1.0.1", now_, [](SharedPlaces::Id) { return absl::InfiniteFuture(); }),
            std::nullopt);
}

TEST_F(SharedPlacesTest, APlaceMayBecomeIdleAtATimeAhead) {
  const SharedPlaces::Id first = Hold("10.0.0.1", 3);
  for (int i = 0; i < 3; ++i) idle_since_[first + i] = now_ + absl::Seconds(5 + i);
  Pass(kSoon);
  EXPECT_EQ(WhoGivesWay("10.1.0.1"), std::nullopt);
  Pass(absl::Seconds(5));
  EXPECT_EQ(WhoGivesWay("10.1.0.1"), first);
}

// Each of many addresses holds one place, so that no address is larger than the newcomer will be. Their network is.
TEST_F(SharedPlacesTest, TheAddressesOfANetworkCountTogether) {
  for (int i = 0; i < 16; ++i) Hold(absl::StrCat("203.0.113.", i));
  for (int i = 0; i < 16; ++i) Hold(absl::StrCat("2001:db8:0:", absl::Hex(i), "::/64"));
  const SharedPlaces::Id vehicle = Hold("198.51.100.7");
  Pass(kSoon);
  for (const char* newcomer : {"192.0.2.1", "2001:db8:1::/64", "token:truck-7", "::1"}) {
    const std::optional<SharedPlaces::Id> given = WhoGivesWay(newcomer);
    ASSERT_TRUE(given.has_value()) << newcomer;
    EXPECT_NE(*given, vehicle) << newcomer;
  }
  EXPECT_EQ(WhoGivesWay("203.0.113.77"), std::nullopt) << "no network is larger than the newcomer's";
  const SharedPlaces::Id more = Hold("2001:db8:0:1::/64", 2);
  Pass(kSoon);
  EXPECT_EQ(WhoGivesWay("203.0.113.77"), 18u) << "the /60 of IPv6 is, and this is the largest client there";
  places_.Remove(more);
  EXPECT_EQ(WhoGivesWay("203.0.113.77"), std::nullopt);
}

TEST_F(SharedPlacesTest, TheWidestNetworkIsChosenFirst) {
  Hold("198.51.100.1", 6);                                            // the largest client
  const SharedPlaces::Id wide = Hold("203.0.0.1");                    // its /16 has 8 places,
  for (int i = 1; i < 8; ++i) Hold(absl::StrCat("203.0.", i, ".1"));  // one in each /24
  Pass(kSoon);
  const std::optional<SharedPlaces::Id> given = WhoGivesWay("192.0.2.1");
  ASSERT_TRUE(given.has_value());
  EXPECT_GE(*given, wide);
}

// An attacker ends its places and opens them again before they have been idle for long.
TEST_F(SharedPlacesTest, PlacesThatAreOpenedAgainGiveWayToWhoHasNone) {
  SharedPlaces places({.over_share_idle = kSoon, .any_idle = kLong, .newcomer_idle = absl::Milliseconds(25)});
  const auto idle_since = [this](SharedPlaces::Id id) { return idle_since_.at(id); };
  const auto open = [&](const std::string& client) {
    places.Add(client, next_id_, now_);
    idle_since_[next_id_] = now_;
    return next_id_++;
  };
  const SharedPlaces::Id vehicle = open("198.51.100.7");
  Use(vehicle);
  SharedPlaces::Id first = next_id_;
  for (int i = 0; i < 16; ++i) open(absl::StrCat("203.0.113.", i));
  for (int turn = 0; turn < 30; ++turn) {
    Pass(absl::Milliseconds(100));
    for (SharedPlaces::Id id = first; id < first + 16; ++id) places.Remove(id);
    first = next_id_;
    for (int i = 0; i < 16; ++i) open(absl::StrCat("203.0.113.", i));
    Pass(absl::Milliseconds(24));
    EXPECT_EQ(places.WhoGivesWay("192.0.2.1", now_, idle_since), std::nullopt) << turn;
    Pass(absl::Milliseconds(1));
    const std::optional<SharedPlaces::Id> given = places.WhoGivesWay("192.0.2.1", now_, idle_since);
    ASSERT_TRUE(given.has_value()) << turn;
    EXPECT_GE(*given, first);
    EXPECT_EQ(places.WhoGivesWay("198.51.100.7", now_, idle_since), std::nullopt) << "it has a place";
  }
}

// An attacker who comes from ever new addresses of one network displaces nobody outside of it.
TEST_F(SharedPlacesTest, NewcomersOfALargeNetworkTakeNoPlacesOfSmallOnes) {
  const SharedPlaces::Id fleet = Hold("198.51.100.1", 2);
  for (int i = 0; i < 20; ++i) Use(Hold(absl::StrCat("203.0.113.", i)));
  Pass(kLong - absl::Milliseconds(1));
  EXPECT_EQ(WhoGivesWay("203.0.113.99"), std::nullopt);
  Pass(absl::Milliseconds(1));
  EXPECT_EQ(WhoGivesWay("203.0.113.99"), fleet) << "a place that is idle for long is of no use to its client";
  EXPECT_EQ(WhoGivesWay("203.0.113.1"), std::nullopt) << "which has a place";
}

TEST_F(SharedPlacesTest, AClientThatHasItsShareGetsNoMore) {
  Hold("10.0.0.1", 3);
  Hold("10.0.0.2", 2);
  Pass(absl::Hours(1));
  EXPECT_EQ(WhoGivesWay("10.0.0.1"), std::nullopt);
  EXPECT_EQ(WhoGivesWay("10.0.0.2"), std::nullopt) << "three are not two more than two";
  Hold("10.0.0.1");
  EXPECT_EQ(WhoGivesWay("10.0.0.2"), 1u);
}

TEST_F(SharedPlacesTest, RemovedPlacesAreForgotten) {
  const SharedPlaces::Id first = Hold("10.0.0.1", 3);
  Hold("token:a", 2);
  Pass(kSoon);
  for (int i = 0; i < 3; ++i) places_.Remove(first + i);
  places_.Remove(first);
  places_.Remove(12345);
  EXPECT_EQ(places_.size(), 2);
  EXPECT_EQ(places_.NumOf("10.0.0.1"), 0);
  EXPECT_EQ(places_.NumOf("token:a"), 2);
  EXPECT_EQ(WhoGivesWay("10.0.0.1"), first + 3);
}

// Whoever comes and goes: the places of all together stay bounded, and a newcomer with nothing beside one network that
// holds everything gets a place each time.
TEST_F(SharedPlacesTest, NewcomersGetPlacesWhileANetworkFightsForThem) {
  constexpr int kLimit = 64;
  std::map<SharedPlaces::Id, std::string> holders;
  const auto open = [&](const std::string& client) {
    if (places_.size() >= kLimit) {
      const std::optional<SharedPlaces::Id> given = WhoGivesWay(client);
      if (!given.has_value()) return false;
      places_.Remove(*given);
      holders.erase(*given);
    }
    holders[Hold(client)] = client;
    return true;
  };
  int num_refused = 0;
  for (int round = 0; round < 40; ++round) {
    for (int i = 0; i < 100; ++i) open(absl::StrCat("203.0.", i % 7, ".", (round * 100 + i) % 256));
    Pass(kSoon);
    num_refused += open(absl::StrCat("198.51.", round, ".1")) ? 0 : 1;
    Pass(kSoon);
  }
  EXPECT_EQ(num_refused, 0);
  EXPECT_LE(places_.size(), kLimit);
}

}  // namespace
}  // namespace voxserve::shared_places_test
