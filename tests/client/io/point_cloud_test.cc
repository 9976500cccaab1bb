#include "client/cpp/api/point_cloud.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::point_cloud_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

PointField* AddField(const std::string& name, uint32_t offset, PointFieldType type, PointCloud* cloud) {
  PointField* field = cloud->add_fields();
  field->set_name(name);
  field->set_offset(offset);
  field->set_type(type);
  return field;
}

TEST(PointCloudTest, HoldsFloatsAsTheyAre) {
  const float points[] = {1, 2, 3, 4, 5, 6};
  const PointCloud cloud = PointCloudFromFloats({"x", "y", "z"}, points, 2);
  EXPECT_EQ(cloud.num_points(), 2u);
  EXPECT_EQ(cloud.point_step(), 12u);
  EXPECT_EQ(cloud.data(), std::string(reinterpret_cast<const char*>(points), sizeof(points)));
  EXPECT_THAT(*FieldValues(cloud, "y"), ElementsAre(2, 5));
  EXPECT_EQ(FindField(cloud, "intensity"), nullptr);
}

TEST(PointCloudTest, MayBeEmpty) {
  const PointCloud cloud = PointCloudFromFloats({"x"}, nullptr, 0);
  EXPECT_THAT(*FieldValues(cloud, "x"), ElementsAre());
}

TEST(PointCloudTest, ReadsEveryTypeInBothByteOrders) {
  PointCloud little, big;
  little.set_data(Bytes<int8_t>(-3) + Bytes<uint8_t>(200) + Bytes<int16_t>(-300) + Bytes<uint16_t>(60000) +
                  Bytes<int32_t>(-70000) + Bytes<uint32_t>(70000) + Bytes(1.5f) + Bytes(-2.25));
  big.set_data(BigEndianBytes<int8_t>(-3) + BigEndianBytes<uint8_t>(200) + BigEndianBytes<int16_t>(-300) +
               BigEndianBytes<uint16_t>(60000) + BigEndianBytes<int32_t>(-70000) + BigEndianBytes<uint32_t>(70000) +
               BigEndianBytes(1.5f) + BigEndianBytes(-2.25));
  big.set_is_bigendian(true);
  for (PointCloud* cloud : {&little, &big}) {
    cloud->set_num_points(1);
    cloud->set_point_step(static_cast<uint32_t>(cloud->data().size()));
    uint32_t offset = 0;
    for (int type = 1; type <= 8; ++type) {
      AddField(std::to_string(type), offset, static_cast<PointFieldType>(type), cloud);
      offset += static_cast<uint32_t>(SizeOf(static_cast<PointFieldType>(type)));
    }
    const std::vector<float> expected = {-3, 200, -300, 60000, -70000, 70000, 1.5f, -2.25f};
    for (int type = 1; type <= 8; ++type) {
      EXPECT_THAT(*FieldValues(*cloud, std::to_string(type)), ElementsAre(expected[static_cast<size_t>(type - 1)]));
    }
  }
}

TEST(PointCloudTest, ReadsHalfPrecision) {
  // Bit patterns of IEEE 754 binary16, and their values.
  const std::vector<std::pair<uint16_t, float>> cases = {
      {0x0000, 0.0f},     {0x8000, -0.0f},    {0x3c00, 1.0f},       {0xc000, -2.0f},          {0x7bff, 65504.0f},
      {0x0400, 0x1p-14f}, {0x0001, 0x1p-24f}, {0x03ff, 0x3ffp-24f}, {0x3555, 0.333251953125f}};
  for (const auto& [bits, value] : cases) {
    PointCloud cloud;
    cloud.set_data(Bytes(bits));
    cloud.set_num_points(1);
    cloud.set_point_step(2);
    AddField("h", 0, v1::POINT_FIELD_TYPE_FLOAT16, &cloud);
    EXPECT_EQ(FieldValues(cloud, "h")->front(), value) << bits;
  }
  for (const auto& [bits, is_nan] : std::vector<std::pair<uint16_t, bool>>{{0x7c00, false}, {0x7e00, true}}) {
    PointCloud cloud;
    cloud.set_data(Bytes(bits));
    cloud.set_num_points(1);
    cloud.set_point_step(2);
    AddField("h", 0, v1::POINT_FIELD_TYPE_FLOAT16, &cloud);
    const float value = FieldValues(cloud, "h")->front();
    EXPECT_EQ(std::isnan(value), is_nan);
    EXPECT_EQ(std::isinf(value), !is_nan);
  }
}

TEST(PointCloudTest, AppliesScaleShiftAndRowStep) {
  PointCloud cloud;  // 2 rows of 2 points of a byte; a byte of padding after a row
  cloud.set_data(std::string("\x01\x02\xff\x03\x04", 5));
  cloud.set_num_points(4);
  cloud.set_height(2);
  cloud.set_row_step(3);
  cloud.set_point_step(1);
  PointField* field = AddField("v", 0, v1::POINT_FIELD_TYPE_UINT8, &cloud);
  field->set_scale(10);
  field->set_shift(0.5);
  EXPECT_THAT(*FieldValues(cloud, "v"), ElementsAre(10.5f, 20.5f, 30.5f, 40.5f));
}

TEST(PointCloudTest, ReadsPackedRowsWhateverRowStepSays) {
  const float points[] = {1, 2, 3, 4};
  PointCloud cloud = PointCloudFromFloats({"x"}, points, 4);
  cloud.set_height(2);
  for (const uint32_t row_step : {0u, 4u, 8u, 16u, 20u}) {
    cloud.set_row_step(row_step);
    EXPECT_THAT(*FieldValues(cloud, "x"), ElementsAre(1, 2, 3, 4)) << row_step;
  }
}

TEST(PointCloudTest, FindsAFieldInAnotherCaseIfItIsTheOnlyOne) {
  const float point[] = {1, 2, 3, 4};
  const PointCloud cloud = PointCloudFromFloats({"X", "Y", "y", "Yy"}, point, 1);
  EXPECT_THAT(*FieldValues(cloud, "x"), ElementsAre(1));
  EXPECT_THAT(*FieldValues(cloud, "y"), ElementsAre(3));
  EXPECT_THAT(*FieldValues(cloud, "yY"), ElementsAre(4));
  EXPECT_EQ(FindField(PointCloudFromFloats({"ZZ", "zZ"}, point, 1), "zz"), nullptr);
}

// The numbers of sensor_msgs/PointField since common_interfaces#301, and of PCL (common/include/pcl/type_traits.h).
TEST(PointCloudTest, KnowsTheDatatypesOfRos) {
  EXPECT_EQ(PointFieldTypeOfRos(1), v1::POINT_FIELD_TYPE_INT8);
  EXPECT_EQ(PointFieldTypeOfRos(7), v1::POINT_FIELD_TYPE_FLOAT32);
  EXPECT_EQ(PointFieldTypeOfRos(8), v1::POINT_FIELD_TYPE_FLOAT64);
  EXPECT_EQ(PointFieldTypeOfRos(11), v1::POINT_FIELD_TYPE_UINT8);
  for (const int other : {-1, 0, 9, 10, 12, 255}) {
    EXPECT_EQ(PointFieldTypeOfRos(other), v1::POINT_FIELD_TYPE_UNSPECIFIED) << other;
  }
}

TEST(PointCloudTest, RefusesLayoutsThatDoNotFitTheBytes) {
  const float points[] = {1, 2, 3};
  const PointCloud good = PointCloudFromFloats({"x"}, points, 3);
  PointCloud cloud = good;
  EXPECT_THAT(std::string(FieldValues(cloud, "y").status().message()), HasSubstr("no field 'y'"));
  cloud.set_num_points(4);
  EXPECT_THAT(std::string(FieldValues(cloud, "x").status().message()), HasSubstr("12 bytes"));
  cloud.set_num_points(0);
  EXPECT_THAT(std::string(FieldValues(cloud, "x").status().message()), HasSubstr("data has 12 bytes, but 0 points"));
  cloud.set_num_points(std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(FieldValues(cloud, "x").ok());
  cloud = good;
  cloud.set_height(2);  // a height of 2 does not divide 3 points
  EXPECT_FALSE(FieldValues(cloud, "x").ok());
  cloud = good;
  cloud.set_height(3);
  cloud.mutable_data()->push_back('.');
  cloud.set_row_step(std::numeric_limits<uint32_t>::max());
  EXPECT_FALSE(FieldValues(cloud, "x").ok());
  cloud.set_row_step(2);  // the rows would overlap
  EXPECT_FALSE(FieldValues(cloud, "x").ok());
  cloud = good;
  cloud.set_num_points(0);
  EXPECT_THAT(std::string(FieldValues(cloud, "x").status().message()), HasSubstr("data has 12 bytes, but 0 points"));
  cloud = good;
  cloud.mutable_fields(0)->set_offset(1);
  EXPECT_FALSE(FieldValues(cloud, "x").ok());
  cloud.mutable_fields(0)->set_offset(0);
  cloud.set_point_step(0);
  EXPECT_FALSE(FieldValues(cloud, "x").ok());
}

}  // namespace
}  // namespace voxserve::client::point_cloud_test
