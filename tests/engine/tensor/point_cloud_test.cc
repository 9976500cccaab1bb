// Tests PointCloud: writes layouts byte by byte from the definitions of their types, and reads the values back.

#include "engine/tensor/point_cloud.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/error_reason.h"
#include "engine/runtime/pinned_pool.h"
#include "tests/support/fake_pinned_memory.h"

namespace voxserve::point_cloud_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns the value's bytes in little-endian order, or reversed.
template <typename T>
std::string BytesOf(T value, bool is_bigendian) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  if (is_bigendian) std::reverse(bytes.begin(), bytes.end());
  return bytes;
}

std::vector<float> Read(const PointCloud& cloud, const std::string& name) {
  const PointField* const field = cloud.FindField(name);
  std::vector<float> values(cloud.num_points());
  if (field == nullptr) {
    ADD_FAILURE() << "no field " << name;
  } else {
    cloud.ReadField(*field, 0, cloud.num_points(), values.data(), 1);
  }
  return values;
}

absl::Status StatusOf(PointCloudLayout layout, size_t num_bytes) {
  return PointCloud::Create(std::move(layout), std::string(num_bytes, '\0')).status();
}

void ExpectBadLayout(const absl::Status& status, const std::string& message) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), error_reason::kBadLayout);
  EXPECT_EQ(std::string(status.message()), message);
}

// Returns a layout of x, y, z in packed float32.
PointCloudLayout Xyz(uint64_t num_points) {
  return {.num_points = num_points,
          .point_step = 12,
          .fields = {{.name = "x", .offset = 0}, {.name = "y", .offset = 4}, {.name = "z", .offset = 8}}};
}

// Tests two points of 11 bytes, with one field "v" at offset 1, in both byte orders.
template <typename T>
void ExpectReads(PointFieldType type, T first, T second, float expected_first, float expected_second) {
  for (const bool is_bigendian : {false, true}) {
    std::string bytes;
    for (const T value : {first, second}) {
      std::string point(11, '.');
      point.replace(1, sizeof(T), BytesOf(value, is_bigendian));
      bytes += point;
    }
    PointCloudLayout layout = {.num_points = 2, .point_step = 11, .is_bigendian = is_bigendian, .fields = {}};
    layout.fields.push_back({.name = "v", .offset = 1, .type = type});
    const absl::StatusOr<PointCloud> cloud = PointCloud::Create(layout, bytes);
    ASSERT_TRUE(cloud.ok()) << cloud.status().message();
    EXPECT_THAT(Read(*cloud, "v"), ElementsAre(expected_first, expected_second)) << "big endian: " << is_bigendian;
  }
}

TEST(PointCloudReadTest, EveryTypeInBothByteOrders) {
  ExpectReads<int8_t>(PointFieldType::kInt8, -128, 127, -128, 127);
  ExpectReads<uint8_t>(PointFieldType::kUint8, 0, 255, 0, 255);
  ExpectReads<int16_t>(PointFieldType::kInt16, -32768, 258, -32768, 258);
  ExpectReads<uint16_t>(PointFieldType::kUint16, 65535, 258, 65535, 258);
  ExpectReads<int32_t>(PointFieldType::kInt32, std::numeric_limits<int32_t>::min(), 66051, -2147483648.0F, 66051);
  ExpectReads<uint32_t>(PointFieldType::kUint32, 4294967295U, 66051, 4294967296.0F, 66051);
  ExpectReads<float>(PointFieldType::kFloat32, 1.1F, -kInfinity, 1.1F, -kInfinity);
  ExpectReads<double>(PointFieldType::kFloat64, 1.1, -2.5e-3, 1.1F, -2.5e-3F);
  ExpectReads<uint16_t>(PointFieldType::kFloat16, 0x3c00, 0xc100, 1, -2.5F);
}

TEST(PointCloudReadTest, FiniteDoublesStayFinite) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  ExpectReads<double>(PointFieldType::kFloat64, 1e300, -1e300, kLargest, -kLargest);
  ExpectReads<double>(PointFieldType::kFloat64, static_cast<double>(kInfinity), -1.0, kInfinity, -1);
}

TEST(PointCloudReadTest, NanStaysNan) {
  const float points[] = {std::nanf(""), 1};
  const absl::StatusOr<PointCloud> cloud = PointCloud::FromFloats({"x", "y"}, points, 1);
  ASSERT_TRUE(cloud.ok());
  EXPECT_TRUE(std::isnan(Read(*cloud, "x")[0]));
}

TEST(PointCloudReadTest, ScaleAndShiftInDouble) {
  PointCloudLayout layout = {.num_points = 2, .point_step = 4, .fields = {}};
  layout.fields.push_back(
      {.name = "v", .offset = 0, .type = PointFieldType::kUint32, .count = 1, .scale = 1e-9, .shift = -4});
  const absl::StatusOr<PointCloud> cloud =
      PointCloud::Create(layout, BytesOf<uint32_t>(4'000'000'001U, false) + BytesOf<uint32_t>(0, false));
  ASSERT_TRUE(cloud.ok());
  // The value 1e-9 would be lost if the product were computed in float32.
  EXPECT_NEAR(Read(*cloud, "v")[0], 1e-9, 1e-12);
  EXPECT_EQ(Read(*cloud, "v")[1], -4.0F);
}

TEST(PointCloudReadTest, APartIntoAMatrixColumn) {
  std::vector<float> points(5 * 3);
  for (size_t i = 0; i < points.size(); ++i) points[i] = static_cast<float>(i);
  const absl::StatusOr<PointCloud> cloud = PointCloud::FromFloats({"x", "y", "z"}, points.data(), 5);
  ASSERT_TRUE(cloud.ok());
  std::vector<float> out(6, -1);
  cloud->ReadField(*cloud->FindField("y"), 2, 5, out.data() + 1, 2);
  EXPECT_THAT(out, ElementsAre(-1, 7, -1, 10, -1, 13));
  cloud->ReadField(*cloud->FindField("y"), 3, 3, out.data(), 1);  // none
  EXPECT_EQ(out[0], -1);
}

TEST(PointCloudReadTest, RowsWithPadding) {
  // There are 3 rows of 2 points with one int16. Each row is padded to 7 bytes; the last one may have no padding.
  std::string bytes;
  for (int16_t row = 0; row < 3; ++row) {
    for (int16_t column = 0; column < 2; ++column) bytes += BytesOf<int16_t>(10 * row + column, false);
    bytes += "...";
  }
  PointCloudLayout layout = {.num_points = 6, .point_step = 2, .height = 3, .row_step = 7, .fields = {}};
  layout.fields.push_back({.name = "v", .offset = 0, .type = PointFieldType::kInt16});
  for (const size_t cut : {0, 3}) {
    const absl::StatusOr<PointCloud> cloud = PointCloud::Create(layout, bytes.substr(0, bytes.size() - cut));
    ASSERT_TRUE(cloud.ok()) << cloud.status().message();
    EXPECT_THAT(Read(*cloud, "v"), ElementsAre(0, 1, 10, 11, 20, 21));
    std::vector<float> part(3);
    cloud->ReadField(cloud->layout().fields[0], 1, 4, part.data(), 1);
    EXPECT_THAT(part, ElementsAre(1, 10, 11));
  }
  for (const size_t cut : {1, 2, 4}) EXPECT_FALSE(PointCloud::Create(layout, bytes.substr(0, bytes.size() - cut)).ok());
}

TEST(PointCloudReadTest, PackedRowsWhateverRowStepSays) {
  std::string bytes;
  for (int16_t i = 0; i < 6; ++i) bytes += BytesOf<int16_t>(i, false);
  for (const uint64_t row_step : {0, 2, 3, 4, 7, 12, 100}) {
    PointCloudLayout layout = {.num_points = 6, .point_step = 2, .height = 3, .row_step = row_step, .fields = {}};
    layout.fields.push_back({.name = "v", .offset = 0, .type = PointFieldType::kInt16});
    const absl::StatusOr<PointCloud> cloud = PointCloud::Create(layout, bytes);
    ASSERT_TRUE(cloud.ok()) << cloud.status().message();
    EXPECT_EQ(cloud->layout().row_step, 4U);
    EXPECT_THAT(Read(*cloud, "v"), ElementsAre(0, 1, 2, 3, 4, 5)) << row_step;
  }
}

TEST(PointCloudReadTest, FieldsWithSeveralValuesGiveTheFirst) {
  PointCloudLayout layout = {.num_points = 1, .point_step = 8, .fields = {}};
  layout.fields.push_back({.name = "v", .offset = 0, .type = PointFieldType::kInt16, .count = 4});
  const absl::StatusOr<PointCloud> cloud =
      PointCloud::Create(layout, BytesOf<int16_t>(5, false) + BytesOf<int16_t>(6, false) + "....");
  ASSERT_TRUE(cloud.ok());
  EXPECT_THAT(Read(*cloud, "v"), ElementsAre(5));
}

TEST(PointCloudTest, CopiesShareTheBytesAndOutliveTheOriginal) {
  const float points[] = {1, 2};
  PointCloud copy;
  const char* bytes = nullptr;
  {
    const absl::StatusOr<PointCloud> cloud = PointCloud::FromFloats({"x"}, points, 2);
    ASSERT_TRUE(cloud.ok());
    bytes = cloud->bytes().data();
    copy = *cloud;
  }
  EXPECT_EQ(copy.bytes().data(), bytes);
  EXPECT_EQ(copy.bytes().size(), 8U);
  EXPECT_THAT(Read(copy, "x"), ElementsAre(1, 2));
  EXPECT_EQ(copy.FindField("y"), nullptr);
}

TEST(PointCloudTest, NoPoints) {
  EXPECT_EQ(PointCloud().num_points(), 0U);
  EXPECT_TRUE(PointCloud().bytes().empty());
  EXPECT_TRUE(StatusOf({}, 0).ok());
  EXPECT_TRUE(StatusOf(Xyz(0), 0).ok());
  EXPECT_TRUE(PointCloud::FromFloats({"x", "y"}, nullptr, 0).ok());
  PointCloudLayout rows = Xyz(0);
  rows.height = 16;
  EXPECT_TRUE(StatusOf(rows, 0).ok());
  ExpectBadLayout(StatusOf(Xyz(0), 1), "data has 1 bytes, but 0 points of 12 bytes take 0");
}

TEST(PointCloudTest, HeightAndCountZeroMeanOne) {
  PointCloudLayout layout = Xyz(2);
  layout.height = 0;
  layout.fields[0].count = 0;
  const absl::StatusOr<PointCloud> cloud = PointCloud::Create(layout, std::string(24, '\0'));
  ASSERT_TRUE(cloud.ok()) << cloud.status().message();
  EXPECT_EQ(cloud->layout().height, 1U);
  EXPECT_EQ(cloud->layout().fields[0].count, 1U);
}

TEST(PointCloudTest, BytesMustFit) {
  EXPECT_TRUE(StatusOf(Xyz(3), 36).ok());
  ExpectBadLayout(StatusOf(Xyz(3), 35), "data has 35 bytes, but 3 points of 12 bytes take 36");
  ExpectBadLayout(StatusOf(Xyz(3), 37), "data has 37 bytes, but 3 points of 12 bytes take 36");
  PointCloudLayout rows = Xyz(4);
  rows.height = 2;
  rows.row_step = 32;
  EXPECT_TRUE(StatusOf(rows, 64).ok());
  ExpectBadLayout(StatusOf(rows, 60),
                  "data has 60 bytes, but 4 points of 12 bytes in 2 rows take 48, or 64 with row_step 32");
  ExpectBadLayout(StatusOf(Xyz(0), 65536), "data has 65536 bytes, but 0 points of 12 bytes take 0");
}

TEST(PointCloudTest, SizesDoNotOverflow) {
  PointCloudLayout layout = Xyz(uint64_t{1} << 62);
  ExpectBadLayout(StatusOf(layout, 0),
                  "data has 0 bytes, but 4611686018427387904 points of 12 bytes take 55340232221128654848");
  // 2^32 points of 2^32 - 4 bytes have 2^64 - 2^34 bytes.
  layout.num_points = uint64_t{1} << 32;
  layout.point_step = 4294967292U;
  ExpectBadLayout(StatusOf(layout, 16),
                  "data has 16 bytes, but 4294967296 points of 4294967292 bytes take 18446744056529682432");
  // 16 rows of 2^60 bytes have 2^64 bytes, which is 0 in 64 bits.
  layout = Xyz(16);
  layout.height = 16;
  layout.row_step = uint64_t{1} << 60;
  ExpectBadLayout(StatusOf(layout, 0),
                  "data has 0 bytes, but 16 points of 12 bytes in 16 rows take 192, or 18446744073709551616 with "
                  "row_step 1152921504606846976");
  PointCloudLayout wide = Xyz(1);
  wide.fields[1].count = 4294967295U;
  ExpectBadLayout(StatusOf(wide, 12), "field \"y\" ends at byte 17179869184 of a point whose point_step is 12");
}

TEST(PointCloudTest, StepsMustFit) {
  PointCloudLayout layout = Xyz(4);
  layout.height = 3;
  ExpectBadLayout(StatusOf(layout, 48), "height 3 does not divide num_points 4");
  layout.height = 2;
  layout.row_step = 23;
  ExpectBadLayout(StatusOf(layout, 46), "data has 46 bytes, but 4 points of 12 bytes in 2 rows take 48");
  ExpectBadLayout(StatusOf({.num_points = 7, .fields = {}}, 0), "point_step is 0 for 7 points");
  layout = Xyz(1);
  layout.point_step = 11;
  ExpectBadLayout(StatusOf(layout, 11), "field \"z\" ends at byte 12 of a point whose point_step is 11");
}

// Returns the status of reading the fields with these names.
absl::Status StatusOfReading(PointCloudLayout layout, size_t num_bytes, const std::vector<std::string>& names) {
  const auto cloud = PointCloud::Create(std::move(layout), std::string(num_bytes, '\0'));
  if (!cloud.ok()) return cloud.status();
  std::vector<const PointField*> fields;
  for (const std::string& name : names) fields.push_back(cloud->FindField(name));
  return cloud->CheckReadFields(fields);
}

TEST(PointCloudTest, FieldsThatAreReadMustNotOverlap) {
  PointCloudLayout layout = Xyz(1);
  layout.fields[2].offset = 7;
  ExpectBadLayout(StatusOfReading(layout, 12, {"x", "y", "z"}),
                  "field \"z\" at offset 7 overlaps field \"y\", which ends at byte 8");
  EXPECT_TRUE(StatusOfReading(layout, 12, {"x", "y"}).ok());
  layout = Xyz(1);
  std::swap(layout.fields[0], layout.fields[2]);  // their order does not matter
  EXPECT_TRUE(StatusOfReading(layout, 12, {"y", "x", "z", "x"}).ok());
  layout.fields[2].count = 2;
  ExpectBadLayout(StatusOfReading(layout, 12, {"z", "y", "x"}),
                  "field \"y\" at offset 4 overlaps field \"x\", which ends at byte 8");
}

TEST(PointCloudTest, FieldsThatAreReadHaveATypeThatIsKnown) {
  for (const int type : {0, 10, 11, 255}) {
    PointCloudLayout layout = Xyz(1);
    layout.fields.push_back({.name = "t", .offset = 4, .type = static_cast<PointFieldType>(type), .count = 100});
    EXPECT_TRUE(StatusOfReading(layout, 12, {"x", "y", "z"}).ok()) << type;
    const absl::Status status = StatusOfReading(layout, 12, {"x", "t"});
    EXPECT_EQ(ReasonOf(status), error_reason::kBadLayout);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("reads field \"t\", whose type " + std::to_string(type) + " is none of 1 to 9"));
  }
}

TEST(PointCloudTest, FindsAFieldInAnotherCaseIfItIsTheOnlyOne) {
  PointCloudLayout layout = Xyz(1);
  layout.fields[0].name = "X";
  layout.fields[2].name = "Y";
  const auto cloud = PointCloud::Create(layout, std::string(12, '\0'));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->FindField("x"), &cloud->layout().fields[0]);
  EXPECT_EQ(cloud->FindField("y"), &cloud->layout().fields[1]);  // the exact name comes first
  EXPECT_EQ(cloud->FindField("Y"), &cloud->layout().fields[2]);
  EXPECT_EQ(cloud->FindField("z"), nullptr);
  layout.fields[1].name = "x";
  layout.fields[0].name = "XX";
  layout.fields[2].name = "xX";
  const auto ambiguous = PointCloud::Create(layout, std::string(12, '\0'));
  ASSERT_TRUE(ambiguous.ok()) << ambiguous.status();
  EXPECT_EQ(ambiguous->FindField("xx"), nullptr);
}

TEST(PointCloudTest, NoPointsHaveNoBytes) {
  PointCloudLayout layout = Xyz(0);
  layout.row_step = 65536;
  EXPECT_TRUE(StatusOf(layout, 0).ok());
  ExpectBadLayout(StatusOf(layout, 65536), "data has 65536 bytes, but 0 points of 12 bytes take 0");
}

TEST(PointCloudTest, FieldsMustBeValid) {
  PointCloudLayout layout = Xyz(1);
  layout.fields[1].name = "x";
  ExpectBadLayout(StatusOf(layout, 12), "two fields are named \"x\"");
  layout = Xyz(1);
  layout.fields[1].name = "";
  ExpectBadLayout(StatusOf(layout, 12), "field number 1 has no name");
  layout = Xyz(1);
  layout.fields[1].name = "a\"b\n";
  layout.fields[1].offset = 13;
  ExpectBadLayout(StatusOf(layout, 12), "field \"a\\\"b\\n\" ends at byte 17 of a point whose point_step is 12");
  layout = Xyz(1);
  for (const double scale : {0.0, std::nan(""), HUGE_VAL}) {
    layout.fields[0].scale = scale;
    EXPECT_THAT(std::string(StatusOf(layout, 12).message()), HasSubstr("field \"x\" has scale "));
  }
  layout = Xyz(1);
  layout.fields[0].shift = HUGE_VAL;
  ExpectBadLayout(StatusOf(layout, 12), "field \"x\" has shift inf; it must be finite");
}

TEST(PointCloudTest, FieldsThatAreNotReadMayLieAnywhere) {
  // The layout is that of a PointCloud2 from a spinning LiDAR's driver: it has gaps, a ring, and a time of 8 bytes.
  PointCloudLayout layout = {.num_points = 1, .point_step = 32, .fields = {}};
  layout.fields = {{.name = "x", .offset = 0},
                   {.name = "y", .offset = 4},
                   {.name = "z", .offset = 8},
                   {.name = "intensity", .offset = 16},
                   {.name = "ring", .offset = 20, .type = PointFieldType::kUint16},
                   {.name = "timestamp", .offset = 24, .type = PointFieldType::kFloat64}};
  EXPECT_TRUE(StatusOf(layout, 32).ok());
}

TEST(SizeOfTest, OfNoTypeIsZero) {
  EXPECT_EQ(SizeOf(static_cast<PointFieldType>(0)), 0);
  EXPECT_EQ(SizeOf(static_cast<PointFieldType>(10)), 0);
}

TEST(PointCloudTest, MovesFromPinnedToOrdinaryMemoryWithAllThatItSays) {
  support::FakePinnedMemory memory;
  const auto pool = PinnedPool::Create({.source = memory.Source()});
  constexpr int64_t kNumPoints = 20'000;
  support::MakeReady(*pool, 4 * kNumPoints, 1);
  PointCloudLayout layout{.num_points = kNumPoints, .point_step = 4, .height = 2, .is_bigendian = true};
  layout.fields.push_back({.name = "x", .scale = 0.5});
  std::string bytes(4 * kNumPoints, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31);
  HostBuffer buffer = *pool->Take(4 * kNumPoints, BufferLife::kRequest);
  buffer.Write(0, bytes);
  buffer.FinishWrites();
  absl::StatusOr<PointCloud> cloud = PointCloud::Create(layout, std::move(buffer));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_TRUE(cloud->is_pinned());
  const absl::StatusOr<PointCloud> ordinary = cloud->InOrdinaryMemory();
  ASSERT_TRUE(ordinary.ok()) << ordinary.status();
  cloud = PointCloud();
  EXPECT_TRUE(pool->Take(4 * kNumPoints, BufferLife::kRequest)->is_pinned()) << "it has its memory back";
  EXPECT_FALSE(ordinary->is_pinned());
  EXPECT_TRUE(ordinary->bytes() == bytes);
  EXPECT_EQ(ordinary->layout().height, 2u);
  EXPECT_TRUE(ordinary->layout().is_bigendian);
  EXPECT_EQ(ordinary->FindField("x")->scale, 0.5);
  EXPECT_EQ(ordinary->InOrdinaryMemory()->bytes().data(), ordinary->bytes().data()) << "nothing is copied again";
  EXPECT_FALSE(PointCloud().is_pinned());
  EXPECT_EQ(PointCloud().InOrdinaryMemory()->num_points(), 0u);
}

}  // namespace
}  // namespace voxserve::point_cloud_test
