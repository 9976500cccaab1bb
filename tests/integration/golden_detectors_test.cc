// Compares the boxes that a C++ client gets for a real scan, through a real gRPC server and the real engine, with those
// that the libraries' definitions give (tests/oracles/network_definitions.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/api/client.h"
#include "tests/engine/box_matching.h"
#include "tests/engine/golden_scan.h"
#include "tests/integration/engine_server.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve::golden_detectors_test {
namespace {

// A model of tests/golden/networks, and the name of the array in networks.npz that has its boxes.
struct Detector {
  std::string name;
  std::string array;
  bool has_velocities = true;
};

class GoldenDetectorsTest : public EngineServerTest, public ::testing::WithParamInterface<Detector> {
 protected:
  void SetUp() override {
    const std::string golden = support::SourceDir() + "/tests/golden";
    ASSERT_NO_FATAL_FAILURE(Start(golden + "/networks"));
    auto scan = LoadGoldenScan("pandaset_063");
    ASSERT_TRUE(scan.ok()) << scan.status();
    points_ = std::move(scan->points);
    auto arrays = support::ReadNpz(golden + "/networks.npz");
    ASSERT_TRUE(arrays.ok()) << arrays.status();
    expected_ = RowsOf(arrays->at(GetParam().array));
    ASSERT_GT(expected_.size(), 20u);
    auto caller = client::Client::Create(
        {.address = absl::StrCat("localhost:", server_->grpc_port()), .default_timeout = absl::Minutes(2)});
    ASSERT_TRUE(caller.ok()) << caller.status();
    caller_ = *std::move(caller);
  }

  client::PointCloud Scan() const {
    return client::PointCloudFromFloats({"x", "y", "z", "intensity"}, points_.data(), points_.size() / 4);
  }

  void ExpectGolden(const client::Detections& found) const {
    const BoxMatches matches = MatchBoxes(RowsOf(found.boxes), expected_, {.number = 2e-3f, .score = 2e-3f});
    EXPECT_TRUE(matches.missing.empty() && matches.others.empty()) << matches.ToString();
    EXPECT_EQ(found.model, GetParam().name);
    EXPECT_EQ(found.version, 1);
    EXPECT_EQ(found.device, "cpu");
    EXPECT_GT(found.counts.voxels(), 0u);
    EXPECT_EQ(found.counts.used() + found.counts.out_of_range() + found.counts.dropped(), points_.size() / 4);
  }

  std::vector<float> points_;  // x, y, z and intensity of each point.
  std::vector<BoxRow> expected_;
  std::unique_ptr<client::Client> caller_;
};

TEST_P(GoldenDetectorsTest, ACallGetsTheBoxes) {
  const auto found = caller_->Detect({.model = GetParam().name}, Scan());
  ASSERT_TRUE(found.ok()) << found.status();
  ExpectGolden(*found);
  EXPECT_EQ(MetricOf(absl::StrCat("voxserve_boxes_total{model=\"", GetParam().name, "\"}")),
            static_cast<double>(expected_.size()));
}

TEST_P(GoldenDetectorsTest, AStreamGetsThemOfEveryFrame) {
  constexpr int kFrames = 3;
  std::map<uint64_t, absl::StatusOr<client::Detections>> found;
  absl::Notification ended;
  const auto stream = caller_->OpenDetectionStream(
      {.model = GetParam().name, .policy = client::StreamPolicy::kQueue},
      {.on_result =
           [&](client::DetectionFrameOutcome frame) { found.emplace(frame.frame_id, std::move(frame.result)); },
       .on_end =
           [&](const absl::Status& status) {
             EXPECT_TRUE(status.ok()) << status;
             ended.Notify();
           }});
  ASSERT_TRUE(stream.ok()) << stream.status();
  for (uint64_t id = 0; id < kFrames; ++id) EXPECT_TRUE((*stream)->Send(id, Scan()).ok());
  (*stream)->CloseSends();
  ended.WaitForNotification();
  ASSERT_EQ(found.size(), kFrames);
  for (const auto& [id, frame] : found) {
    SCOPED_TRACE(id);
    ASSERT_TRUE(frame.ok()) << frame.status();
    ExpectGolden(*frame);
  }
}

TEST_P(GoldenDetectorsTest, TheModelSaysWhatItsBoxesHave) {
  const auto model = caller_->GetModel(GetParam().name);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(model->has_boxes());
  EXPECT_FALSE(model->has_labels());
  EXPECT_EQ(model->has_velocities(), GetParam().has_velocities);
}

TEST_P(GoldenDetectorsTest, PointsOutOfItsRangeHaveNoBoxes) {
  const float far[] = {1000, 0, 0, 0.5f};
  const auto found =
      caller_->Detect({.model = GetParam().name}, client::PointCloudFromFloats({"x", "y", "z", "intensity"}, far, 1));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->boxes.empty());
  EXPECT_EQ(found->counts.out_of_range(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Detectors, GoldenDetectorsTest,
                         ::testing::Values(Detector{"small-centerpoint-openpcdet", "centerpoint_openpcdet_boxes"},
                                           Detector{"small-centerpoint-det3d", "centerpoint_det3d_boxes"},
                                           Detector{"small-voxelnext", "voxelnext_boxes"},
                                           Detector{"small-centerpoint-pillar", "centerpoint_pillar_boxes"},
                                           Detector{"small-pointpillars", "pointpillars_boxes",
                                                    /*has_velocities=*/false},
                                           Detector{"small-second", "second_boxes", /*has_velocities=*/false}),
                         [](const auto& param_info) {
                           return absl::StrReplaceAll(param_info.param.name, {{"-", "_"}});
                         });

}  // namespace
}  // namespace voxserve::golden_detectors_test
