// Tests FrameParts, which puts the parts of a stream's frame into one cloud.

#include "server/services/frame_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "server/codec/codec.h"

namespace voxserve::frame_parts_test {
namespace {

using testing::HasSubstr;

constexpr uint32_t kPointStep = 16;

// A part whose points begin with this number: x of point i is first + i.
v1::FramePart PartOf(uint32_t index, uint64_t num_points, bool is_last = false, float first = 0) {
  v1::FramePart part;
  part.set_frame_id(7);
  part.set_index(index);
  part.set_is_last(is_last);
  v1::PointCloud& cloud = *part.mutable_cloud();
  std::vector<float> values(num_points * 4);
  for (size_t i = 0; i < num_points; ++i) values[4 * i] = first + static_cast<float>(i);
  cloud.set_data(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  cloud.set_num_points(num_points);
  cloud.set_point_step(kPointStep);
  for (const char* name : {"x", "y", "z", "intensity"}) {
    v1::PointField& field = *cloud.add_fields();
    field.set_name(name);
    field.set_offset(static_cast<uint32_t>(cloud.fields_size() - 1) * 4);
    field.set_type(v1::POINT_FIELD_TYPE_FLOAT32);
  }
  return part;
}

class FramePartsTest : public testing::Test {
 protected:
  FrameParts::Options Options() {
    return {.max_points = 1000,
            .model = "m",
            .max_bytes = 1 << 20,
            .allocate = [this](int64_t bytes) { return Allocate(bytes); },
            .hold = [this](int64_t bytes) { return limits_.Hold(ByteKind::kFrame, "client", bytes); }};
  }

  absl::StatusOr<HostBuffer> Allocate(int64_t bytes) {
    ++num_allocations_;
    return HostBuffer::Create(bytes);
  }

  // Adds the part as the server does.
  absl::Status Add(FrameParts& frame, v1::FramePart part) {
    HostBuffer data = *HostBuffer::CopyOf(part.cloud().data());
    part.mutable_cloud()->clear_data();
    absl::StatusOr<HeldBytes> held = limits_.Hold(ByteKind::kFrame, "client", data.size() + 100);
    if (!held.ok()) return held.status();
    absl::StatusOr<PointCloud> cloud = DecodeCloud(part.mutable_cloud(), std::move(data));
    return cloud.ok() ? frame.Add(part, *std::move(cloud), *std::move(held)) : cloud.status();
  }

  static void ExpectRefused(const absl::Status& status, absl::StatusCode code, std::string_view reason,
                            const std::string& text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(ReasonOf(status), reason);
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }
  static void ExpectBad(const absl::Status& status, std::string_view reason, const std::string& text) {
    ExpectRefused(status, absl::StatusCode::kInvalidArgument, reason, text);
  }
  static std::string LackOf(const FrameParts& frame) {
    const absl::Status status = frame.Incomplete(absl::StatusCode::kInvalidArgument, "why");
    EXPECT_EQ(ReasonOf(status), error_reason::kFrameIncomplete);
    return std::string(status.message());
  }

  ByteLimits limits_{{}};
  int num_allocations_ = 0;
};

TEST_F(FramePartsTest, AnyOrderMakesTheCloudOfTheWholeFrame) {
  std::mt19937 random(1);
  std::vector<uint32_t> order(9);
  std::iota(order.begin(), order.end(), 0);
  for (int trial = 0; trial < 20; ++trial) {
    FrameParts frame(7, Options());
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_FALSE(frame.is_complete());
      const uint32_t index = order[i];  // part i has i points, so part 0 is empty
      const float first = static_cast<float>(index * (index - 1)) / 2;
      ASSERT_TRUE(Add(frame, PartOf(index, index, index == 8, first)).ok());
    }
    ASSERT_TRUE(frame.is_complete());
    EXPECT_EQ(frame.num_bytes(), 36 * kPointStep);
    EXPECT_EQ(frame.Description().num_points(), 36u);
    const absl::StatusOr<PointCloud> cloud = frame.TakeCloud();
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    v1::FramePart whole = PartOf(0, 36);
    EXPECT_EQ(cloud->bytes(), whole.cloud().data());
    const absl::StatusOr<PointCloud> expected =
        DecodeCloud(whole.mutable_cloud(), *HostBuffer::CopyOf(whole.cloud().data()));
    ASSERT_TRUE(expected.ok());
    EXPECT_EQ(cloud->layout().num_points, expected->layout().num_points);
    EXPECT_EQ(cloud->layout().row_step, expected->layout().row_step);
    ASSERT_EQ(cloud->layout().fields.size(), 4u);
    EXPECT_EQ(cloud->layout().fields[3].name, "intensity");
    std::shuffle(order.begin(), order.end(), random);
  }
}

TEST_F(FramePartsTest, OnePartIsAFrame) {
  FrameParts frame(7, Options());
  ASSERT_TRUE(Add(frame, PartOf(0, 3, /*is_last=*/true)).ok());
  EXPECT_TRUE(frame.is_complete());
  EXPECT_EQ(frame.TakeCloud()->num_points(), 3u);
}

TEST_F(FramePartsTest, AFrameMayHaveNoPoints) {
  FrameParts frame(7, Options());
  v1::FramePart part;
  part.mutable_cloud();
  ASSERT_TRUE(Add(frame, part).ok());
  part.set_index(1);
  part.set_is_last(true);
  ASSERT_TRUE(Add(frame, part).ok());
  ASSERT_TRUE(frame.is_complete());
  const absl::StatusOr<PointCloud> cloud = frame.TakeCloud();
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 0u);
  EXPECT_TRUE(cloud->layout().fields.empty());
}

TEST_F(FramePartsTest, OnePartDescribesTheFields) {
  for (const uint32_t describing : {0u, 1u, 2u}) {
    FrameParts frame(7, Options());
    for (uint32_t index = 0; index < 3; ++index) {
      v1::FramePart part = PartOf(index, 2, index == 2);
      if (index != describing) part.mutable_cloud()->clear_fields();
      ASSERT_TRUE(Add(frame, part).ok());
    }
    EXPECT_EQ(frame.TakeCloud()->layout().fields.size(), 4u) << describing;
  }
}

TEST_F(FramePartsTest, RowsLoseTheirPadding) {
  FrameParts frame(7, Options());
  ASSERT_TRUE(Add(frame, PartOf(0, 1, false, 100)).ok());
  v1::FramePart rows = PartOf(1, 4, /*is_last=*/true);  // two rows of two points, each with 8 bytes behind it
  const std::string packed = rows.cloud().data();
  rows.mutable_cloud()->set_data(packed.substr(0, 32) + "paddings" + packed.substr(32) + "paddings");
  rows.mutable_cloud()->set_height(2);
  rows.mutable_cloud()->set_row_step(40);
  ASSERT_TRUE(Add(frame, rows).ok());
  const absl::StatusOr<PointCloud> cloud = frame.TakeCloud();
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->bytes(), absl::StrCat(PartOf(0, 1, false, 100).cloud().data(), packed));
  EXPECT_EQ(cloud->layout().height, 1u);
  EXPECT_EQ(cloud->layout().row_step, 80u);
}

TEST_F(FramePartsTest, TheHighestIndexSaysWhenAndWhere) {
  FrameParts frame(7, Options());
  const auto part_of = [](uint32_t index, bool is_last) {
    v1::FramePart part = PartOf(index, 1, is_last);
    part.mutable_cloud()->mutable_stamp()->set_seconds(1000 + index);
    part.mutable_cloud()->set_frame_id(absl::StrCat("lidar", index));
    part.mutable_pose()->set_x(index);
    return part;
  };
  ASSERT_TRUE(Add(frame, part_of(2, false)).ok());
  v1::FramePart plain = PartOf(3, 1, true);
  plain.mutable_cloud()->mutable_stamp()->set_seconds(0);  // not known
  ASSERT_TRUE(Add(frame, plain).ok());
  ASSERT_TRUE(Add(frame, part_of(0, false)).ok());
  EXPECT_FALSE(frame.reset_sweeps());
  v1::FramePart reset = part_of(1, false);
  reset.set_reset_sweeps(true);
  ASSERT_TRUE(Add(frame, reset).ok());
  ASSERT_TRUE(frame.is_complete());
  EXPECT_EQ(frame.Description().stamp().seconds(), 1002);
  EXPECT_EQ(frame.Description().frame_id(), "lidar2");
  ASSERT_TRUE(frame.pose().has_value());
  EXPECT_EQ(frame.pose()->x, 2);
  EXPECT_TRUE(frame.reset_sweeps());
}

TEST_F(FramePartsTest, RefusesIndicesThatCannotBe) {
  {
    FrameParts frame(7, Options());
    ASSERT_TRUE(Add(frame, PartOf(0, 1)).ok());
    ExpectBad(Add(frame, PartOf(0, 1)), error_reason::kBadPart, "part 0 of frame 7 came twice");
  }
  {
    FrameParts frame(7, Options());
    ASSERT_TRUE(Add(frame, PartOf(5, 1)).ok());
    ExpectBad(Add(frame, PartOf(5, 1)), error_reason::kBadPart, "part 5 of frame 7 came twice");
  }
  {
    FrameParts frame(7, Options());
    ASSERT_TRUE(Add(frame, PartOf(2, 1, /*is_last=*/true)).ok());
    ExpectBad(Add(frame, PartOf(3, 1)), error_reason::kBadPart, "part 3 of frame 7 has come, but part 2 was the last");
  }
  {
    FrameParts frame(7, Options());
    ASSERT_TRUE(Add(frame, PartOf(2, 1, /*is_last=*/true)).ok());
    ExpectBad(Add(frame, PartOf(1, 1, /*is_last=*/true)), error_reason::kBadPart, "is_last, but part 2 was the last");
  }
  {
    FrameParts frame(7, Options());
    ASSERT_TRUE(Add(frame, PartOf(4, 1)).ok());
    ExpectBad(Add(frame, PartOf(3, 1, /*is_last=*/true)), error_reason::kBadPart, "is_last, but part 4 has come");
  }
  FrameParts frame(7, Options());
  ExpectBad(Add(frame, PartOf(4096, 1)), error_reason::kBadPart, "at most 4096 parts");
  ExpectBad(Add(frame, PartOf(UINT32_MAX, 1)), error_reason::kBadPart, "at most 4096 parts");
}

TEST_F(FramePartsTest, RefusesPartsOfAnotherLayout) {
  const auto refused_as = [&](const std::string& what, void (*change)(v1::PointCloud*)) {
    FrameParts frame(7, Options());
    ASSERT_TRUE(Add(frame, PartOf(0, 2)).ok());
    v1::FramePart part = PartOf(1, 2);
    change(part.mutable_cloud());
    ExpectBad(Add(frame, part), error_reason::kBadLayout, absl::StrCat("differ in their ", what));
  };
  refused_as("fields", [](v1::PointCloud* cloud) { cloud->mutable_fields(3)->set_name("i"); });
  refused_as("fields", [](v1::PointCloud* cloud) { cloud->mutable_fields(3)->set_scale(2); });
  refused_as("fields", [](v1::PointCloud* cloud) { cloud->mutable_fields(3)->set_shift(2); });
  refused_as("fields", [](v1::PointCloud* cloud) { cloud->mutable_fields(3)->set_offset(8); });
  refused_as("fields", [](v1::PointCloud* cloud) { cloud->mutable_fields(3)->set_type(v1::POINT_FIELD_TYPE_INT32); });
  refused_as("fields", [](v1::PointCloud* cloud) { cloud->mutable_fields()->RemoveLast(); });
  refused_as("is_bigendian", [](v1::PointCloud* cloud) { cloud->set_is_bigendian(true); });
  refused_as("point_step", [](v1::PointCloud* cloud) {
    cloud->set_point_step(32);
    cloud->set_num_points(1);
  });
}

TEST_F(FramePartsTest, LimitsHoldForAllPartsTogether) {
  FrameParts::Options few = Options();
  few.max_points = 10;
  FrameParts points(7, few);
  ASSERT_TRUE(Add(points, PartOf(0, 6)).ok());
  ASSERT_TRUE(Add(points, PartOf(2, 4)).ok()) << "10 points";
  ExpectBad(Add(points, PartOf(1, 1)), error_reason::kTooManyPoints, "the limit of model \"m\", which is 10");

  FrameParts::Options small = Options();
  small.max_bytes = 10 * kPointStep;
  FrameParts bytes(7, small);
  ASSERT_TRUE(Add(bytes, PartOf(1, 6)).ok());
  ASSERT_TRUE(Add(bytes, PartOf(0, 4)).ok());
  ExpectRefused(Add(bytes, PartOf(2, 1)), absl::StatusCode::kResourceExhausted, error_reason::kFrameTooLarge,
                "have 176 bytes or more; a message may have 160 (--max_message_bytes)");
}

TEST_F(FramePartsTest, SaysWhichPartsLack) {
  FrameParts frame(7, Options());
  ASSERT_TRUE(Add(frame, PartOf(0, 1)).ok());
  EXPECT_EQ(LackOf(frame), "frame 7 lacks parts 1 and all after it: why");
  ASSERT_TRUE(Add(frame, PartOf(4, 1)).ok());
  EXPECT_EQ(LackOf(frame), "frame 7 lacks parts 1 to 3, 5 and all after it: why");
  ASSERT_TRUE(Add(frame, PartOf(6, 1, /*is_last=*/true)).ok());
  EXPECT_EQ(LackOf(frame), "frame 7 lacks parts 1 to 3, 5: why");

  FrameParts sparse(7, Options());
  for (uint32_t index = 1; index < 40; index += 2) ASSERT_TRUE(Add(sparse, PartOf(index, 1)).ok());
  EXPECT_EQ(LackOf(sparse), "frame 7 lacks parts 0, 2, 4, 6, more: why");
}

TEST_F(FramePartsTest, HoldsTheBytesThatItHas) {
  FrameParts::Options options = Options();
  options.expected_bytes = 80 * kPointStep;
  FrameParts frame(7, options);
  ASSERT_TRUE(Add(frame, PartOf(0, 10)).ok());
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 90 * kPointStep) << "an eighth more than expected";
  ASSERT_TRUE(Add(frame, PartOf(1, 80)).ok());
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 90 * kPointStep);
  EXPECT_EQ(num_allocations_, 1);
  ASSERT_TRUE(Add(frame, PartOf(3, 5)).ok());
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 90 * kPointStep + 5 * kPointStep + 100) << "it waits for part 2";
  ASSERT_TRUE(Add(frame, PartOf(2, 1, false)).ok());
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 180 * kPointStep);
  EXPECT_EQ(num_allocations_, 2);
  ASSERT_TRUE(Add(frame, PartOf(4, 0, /*is_last=*/true)).ok());
  {
    const HeldBytes held = frame.TakeHeld();
    EXPECT_EQ(held.bytes(), 180 * kPointStep);
  }
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 0);
  EXPECT_EQ(frame.TakeCloud()->bytes().size(), 96 * kPointStep);
}

TEST_F(FramePartsTest, TakesWhatItNeedsWhereMoreDoesNotFit) {
  constexpr int64_t kMost = 50 * kPointStep;
  FrameParts::Options options = Options();
  options.expected_bytes = 80 * kPointStep;
  options.hold = [this](int64_t bytes) -> absl::StatusOr<HeldBytes> {
    if (bytes > kMost) return ClientLimitError("too much");
    return limits_.Hold(ByteKind::kFrame, "client", bytes);
  };
  FrameParts frame(7, options);
  ASSERT_TRUE(Add(frame, PartOf(0, 10)).ok()) << "less than expected";
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 10 * kPointStep);
  ASSERT_TRUE(Add(frame, PartOf(1, 20)).ok());
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 30 * kPointStep);
  ASSERT_TRUE(Add(frame, PartOf(2, 15)).ok()) << "less than the double";
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 45 * kPointStep);
  ExpectRefused(Add(frame, PartOf(3, 6)), absl::StatusCode::kResourceExhausted, error_reason::kClientLimit, "too much");
}

TEST_F(FramePartsTest, StaysWithinTheLimitWhileItGrows) {
  constexpr int64_t kMost = 100 * kPointStep;
  MemoryBudget budget(2 * kMost);  // half of it is for what waits
  ByteLimits limits({.budget = &budget});
  int64_t in_use = 0;  // the place of the points
  FrameParts::Options options = Options();
  options.hold = [&](int64_t bytes) { return limits.Hold(ByteKind::kFrame, "client", bytes); };
  options.allocate = [&](int64_t bytes) {
    EXPECT_LE(in_use + bytes, kMost) << "the old place and the new one";
    EXPECT_GE(limits.held(ByteKind::kFrame), in_use + bytes);
    EXPECT_LE(budget.held(), kMost);
    in_use = bytes;
    return Allocate(bytes);
  };
  FrameParts frame(7, options);
  absl::Status status;
  uint32_t index = 0;
  while (status.ok() && index < 100) status = Add(frame, PartOf(index++, 3));
  ExpectRefused(status, absl::StatusCode::kResourceExhausted, error_reason::kQueueFull, "--memory_limit");
  EXPECT_EQ(index, 18u) << "places of 48 and of 51 points fit together, and of 51 and 54 do not";
}

TEST_F(FramePartsTest, AFrameThatIsGivenUpHoldsNothing) {
  {
    FrameParts frame(7, Options());
    ASSERT_TRUE(Add(frame, PartOf(0, 10)).ok());
    ASSERT_TRUE(Add(frame, PartOf(2, 10)).ok());
    EXPECT_GT(limits_.held(ByteKind::kFrame), 20 * kPointStep);
  }
  EXPECT_EQ(limits_.held(ByteKind::kFrame), 0);
}

TEST_F(FramePartsTest, RefusesWhatTheLimitsRefuse) {
  FrameParts::Options options = Options();
  options.hold = [](int64_t) { return ClientLimitError("too much"); };
  FrameParts held(7, options);
  ExpectRefused(Add(held, PartOf(0, 10)), absl::StatusCode::kResourceExhausted, error_reason::kClientLimit, "too much");
  options = Options();
  options.allocate = [](int64_t) { return OutOfMemoryError("none left"); };
  FrameParts allocated(7, options);
  ExpectRefused(Add(allocated, PartOf(0, 10)), absl::StatusCode::kResourceExhausted, error_reason::kOutOfMemory,
                "none left");
}

}  // namespace
}  // namespace voxserve::frame_parts_test
