#include "client/cpp/io/compacting.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gmock/gmock.h"

namespace voxserve::client::compacting_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<float> RandomPoints(size_t num_points, float extent) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> coordinate(-extent / 2, extent / 2), share(0, 1);
  std::vector<float> points;
  for (size_t i = 0; i < num_points; ++i) {
    points.insert(points.end(), {coordinate(random), coordinate(random), coordinate(random) / 20, share(random)});
  }
  return points;
}

PointCloud CloudOf(const std::vector<float>& points) {
  return PointCloudFromFloats({"x", "y", "z", "intensity"}, points.data(), points.size() / 4);
}

std::vector<std::string> NamesOf(const CompactLoss& loss) {
  std::vector<std::string> names;
  for (const CompactLoss::OfField& field : loss.fields) names.push_back(field.name);
  return names;
}

TEST(CompactTest, HalvesTheBytesAndMovesPointsByHalfAStep) {
  const std::vector<float> points = RandomPoints(1000, 120);
  PointCloud cloud = CloudOf(points);
  const auto loss = Compact(&cloud);
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(loss->reason, "");
  EXPECT_EQ(cloud.point_step(), 8u);
  EXPECT_EQ(cloud.data().size(), 8000u);
  EXPECT_EQ(loss->num_bytes_before, 16000u);
  EXPECT_EQ(loss->num_bytes, 8000u);
  EXPECT_THAT(NamesOf(*loss), ElementsAre("x", "y", "z", "intensity"));
  const double steps[] = {0.0019, 0.0019, 0.001, 1.0 / 65535};
  for (int column = 0; column < 4; ++column) {
    const PointField& field = cloud.fields(column);
    double smallest = std::numeric_limits<double>::infinity(), given = smallest, largest = 0;
    for (size_t i = 0; i < 1000; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, cloud.data().data() + i * 8 + field.offset(), sizeof(bits));
      const double raw = column < 3 ? static_cast<int16_t>(bits) : bits;
      const double value = raw * field.scale() + field.shift(), before = points[i * 4 + static_cast<size_t>(column)];
      largest = std::max(largest, std::abs(value - before));
      smallest = std::min(smallest, value);
      given = std::min(given, before);
    }
    EXPECT_LE(largest, steps[column] / 2 * (1 + 1e-6)) << field.name();
    EXPECT_DOUBLE_EQ(largest, loss->fields[static_cast<size_t>(column)].largest_change);
    if (column < 3) {
      EXPECT_EQ(static_cast<float>(smallest), static_cast<float>(given)) << "the smallest coordinate stays what it is";
    }
  }
  EXPECT_THAT(Describe(*loss, 1000), HasSubstr("1000 points, 16000 -> 8000 bytes, x within 0.00095 m"));
}

TEST(CompactTest, KeepsOtherFieldsWithoutPaddingAndInLittleEndian) {
  // Two rows of two points: x, y, z big endian, a colour of two values, the intensity as a byte, and padding.
  PointCloud cloud;
  const auto add = [&](const char* name, PointFieldType type, uint32_t offset, uint32_t count) {
    PointField& field = *cloud.add_fields();
    field.set_name(name);
    field.set_type(type);
    field.set_offset(offset);
    field.set_count(count);
  };
  add("x", v1::POINT_FIELD_TYPE_FLOAT64, 0, 1);
  add("y", v1::POINT_FIELD_TYPE_FLOAT32, 8, 1);
  add("z", v1::POINT_FIELD_TYPE_FLOAT32, 12, 0);
  add("color", v1::POINT_FIELD_TYPE_UINT16, 18, 2);
  add("intensity", v1::POINT_FIELD_TYPE_UINT8, 16, 1);
  add("strange", v1::POINT_FIELD_TYPE_UNSPECIFIED, 0, 1);
  std::string data;
  const auto append = [&](auto value) {
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    std::reverse(std::begin(bytes), std::end(bytes));
    data.append(bytes, sizeof(value));
  };
  for (int i = 0; i < 4; ++i) {
    append(450000.5 + i);
    append(static_cast<float>(i));
    append(-1.0f);
    data += static_cast<char>(i);
    data += '\0';
    append(static_cast<uint16_t>(256 * i));
    append(static_cast<uint16_t>(1));
    if (i == 1) data += "padding";
  }
  cloud.set_data(data);
  cloud.set_num_points(4);
  cloud.set_height(2);
  cloud.set_point_step(22);
  cloud.set_row_step(51);
  cloud.set_is_bigendian(true);
  ASSERT_TRUE(Compact(&cloud).ok());
  EXPECT_FALSE(cloud.is_bigendian());
  EXPECT_EQ(cloud.height(), 2u);
  EXPECT_EQ(cloud.row_step(), 0u);
  EXPECT_EQ(cloud.point_step(), 6u + 4u + 1u);
  EXPECT_THAT(*FieldDoubles(cloud, "x"), ElementsAre(450000.5, 450001.5, 450002.5, 450003.5));
  EXPECT_THAT(*FieldValues(cloud, "z"), ElementsAre(-1, -1, -1, -1));
  EXPECT_THAT(*FieldValues(cloud, "color"), ElementsAre(0, 256, 512, 768));
  EXPECT_THAT(*FieldValues(cloud, "intensity"), ElementsAre(0, 1, 2, 3));
}

TEST(CompactTest, KeepsIntegersWhoseRangeFits) {
  PointCloud cloud;
  for (const char* name : {"x", "y", "z"}) {
    PointField& field = *cloud.add_fields();
    field.set_name(name);
    field.set_type(v1::POINT_FIELD_TYPE_INT32);
    field.set_offset(4 * static_cast<uint32_t>(cloud.fields_size() - 1));
    field.set_count(1);
  }
  const auto set = [&](const std::vector<int32_t>& values) {
    cloud.set_data(std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
    cloud.set_num_points(values.size() / 3);
    cloud.set_point_step(12);
  };
  set({-40000, 1, 0, 25534, 2, 0, 123, 3, 0});
  cloud.mutable_fields(1)->set_scale(0.5);
  cloud.mutable_fields(1)->set_shift(7);
  const PointCloud given = cloud;
  ASSERT_TRUE(Compact(&cloud).ok());
  EXPECT_EQ(cloud.point_step(), 6u);
  EXPECT_THAT(*FieldDoubles(cloud, "x"), ElementsAre(-40000, 25534, 123));
  EXPECT_THAT(*FieldDoubles(cloud, "y"), ElementsAre(7.5, 8, 8.5));
  EXPECT_THAT(*FieldDoubles(cloud, "z"), ElementsAre(0, 0, 0));

  cloud = given;
  set({-40001, 1, 0, 25534, 2, 0, 123, 3, 0});  // one more than 16 bits hold, and too far for steps of a metre's part
  const auto loss = Compact(&cloud);
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_THAT(loss->reason, HasSubstr("x spans 65535 m"));
}

TEST(CompactTest, LeavesACloudAsItIsAndSaysWhy) {
  struct Case {
    size_t value;
    float is;
    const char* reason;
  };
  for (const Case& each :
       {Case{4, std::numeric_limits<float>::quiet_NaN(), "a point's x is not a finite number"},
        Case{7, std::numeric_limits<float>::infinity(), "a point's intensity is not a finite number"},
        Case{5, 2000, "y spans 20"}}) {
    std::vector<float> points = RandomPoints(10, 100);
    points[each.value] = each.is;
    PointCloud cloud = CloudOf(points);
    const std::string before = cloud.SerializeAsString();
    const auto loss = Compact(&cloud);
    ASSERT_TRUE(loss.ok()) << loss.status();
    EXPECT_THAT(loss->reason, HasSubstr(each.reason));
    EXPECT_FALSE(loss->is_compact_already);
    EXPECT_THAT(Describe(*loss, 10), HasSubstr("not compacted: "));
    EXPECT_EQ(cloud.SerializeAsString(), before);
  }
  PointCloud twice = CloudOf(RandomPoints(10, 100));
  ASSERT_TRUE(Compact(&twice).ok());
  const std::string once = twice.SerializeAsString();
  const auto again = Compact(&twice);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->is_compact_already);
  EXPECT_EQ(twice.SerializeAsString(), once);
}

TEST(CompactTest, TakesCloudsOfHardlyAnyPoints) {
  for (const size_t num_points : {size_t{0}, size_t{1}}) {
    PointCloud cloud = CloudOf(RandomPoints(num_points, 100));
    const auto x = *FieldValues(cloud, "x");
    ASSERT_TRUE(Compact(&cloud).ok());
    EXPECT_EQ(cloud.num_points(), num_points);
    EXPECT_EQ(*FieldValues(cloud, "x"), x);
  }
}

TEST(CompactTest, RefusesWhatIsNoCloud) {
  const float values[] = {1, 2, 3, 4};
  PointCloud flat = PointCloudFromFloats({"x", "y"}, values, 2);
  EXPECT_THAT(std::string(Compact(&flat).status().message()), HasSubstr("no field 'z'"));
  PointCloud cloud = CloudOf(RandomPoints(10, 100));
  cloud.mutable_fields(1)->set_offset(14);
  EXPECT_THAT(std::string(Compact(&cloud).status().message()), HasSubstr("'y' at offset 14 does not fit"));
  cloud = CloudOf(RandomPoints(10, 100));
  cloud.mutable_data()->pop_back();
  EXPECT_FALSE(Compact(&cloud).ok());
}

}  // namespace
}  // namespace voxserve::client::compacting_test
