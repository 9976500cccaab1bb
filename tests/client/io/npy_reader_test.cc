// Tests the reader of .npy files. Their headers are copies of those that numpy.save of NumPy 2.4 writes.

#include "client/cpp/io/npy_reader.h"

#include <cmath>

#include "client/cpp/io/npy_header.h"
#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::npy_reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string File(std::string dict, const std::string& data) {
  dict.resize(117, ' ');
  dict += '\n';
  return std::string("\x93NUMPY\x01\x00", 8) + Bytes(static_cast<uint16_t>(dict.size())) + dict + data;
}

std::string MessageOf(const std::string& contents, const FieldSpec* spec = nullptr) {
  const auto cloud = ReadNpy(contents, spec);
  EXPECT_FALSE(cloud.ok());
  EXPECT_EQ(cloud.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(cloud.status().message());
}

TEST(NpyReaderTest, NamesTheColumnsOfATable) {
  const auto cloud = ReadNpy(
      File("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }", BytesOf<float>({1, 2, 3, 0.5, 4, 5, 6, 1})),
      nullptr);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 2u);
  EXPECT_EQ(cloud->point_step(), 16u);
  EXPECT_THAT(*FieldValues(*cloud, "y"), ElementsAre(2, 5));
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(0.5, 1));
}

TEST(NpyReaderTest, ThreeColumnsHaveNoIntensityAndFurtherOnesAreSkipped) {
  const auto three =
      ReadNpy(File("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }", BytesOf<double>({1, 2, 3})), nullptr);
  ASSERT_TRUE(three.ok()) << three.status();
  EXPECT_EQ(three->fields_size(), 3);
  EXPECT_THAT(*FieldValues(*three, "z"), ElementsAre(3));
  const auto six = ReadNpy(
      File("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 6), }", BytesOf<float>({1, 2, 3, 4, 5, 6})), nullptr);
  ASSERT_TRUE(six.ok()) << six.status();
  EXPECT_EQ(six->fields_size(), 4);
  EXPECT_EQ(six->point_step(), 24u);
}

TEST(NpyReaderTest, RefusesAnArrayWhosePointsAreColumns) {
  const std::string file = File("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 9), }", std::string(144, '\0'));
  EXPECT_THAT(MessageOf(file, nullptr),
              HasSubstr("shape (4, 9), which would be 4 points of 9 values; a point is a row"));
  const FieldSpec first = *ParseFieldSpec("x:f32,y:f32,z:f32,intensity:f32");
  EXPECT_THAT(MessageOf(file, &first), HasSubstr("points.T"));
  const FieldSpec all = *ParseFieldSpec("x:f32,y:f32,z:f32,-:f32,-:f32,-:f32,-:f32,-:f32,-:f32");
  EXPECT_TRUE(ReadNpy(file, &all).ok());
  EXPECT_TRUE(
      ReadNpy(File("{'descr': '<f4', 'fortran_order': False, 'shape': (9, 9), }", std::string(324, '\0')), nullptr)
          .ok());
}

TEST(NpyReaderTest, ReadsBigEndianAndHalfPrecision) {
  const auto big = ReadNpy(File("{'descr': '>f8', 'fortran_order': False, 'shape': (1, 3), }",
                                BigEndianBytes(1.5) + BigEndianBytes(-2.0) + BigEndianBytes(3.0)),
                           nullptr);
  ASSERT_TRUE(big.ok()) << big.status();
  EXPECT_THAT(*FieldValues(*big, "x"), ElementsAre(1.5));
  const auto half = ReadNpy(
      File("{'descr': '<f2', 'fortran_order': False, 'shape': (1, 3), }", BytesOf<uint16_t>({0x3c00, 0xc000, 0x3800})),
      nullptr);
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_THAT(*FieldValues(*half, "y"), ElementsAre(-2));
  EXPECT_THAT(*FieldValues(*half, "z"), ElementsAre(0.5));
}

TEST(NpyReaderTest, TurnsFortranOrderIntoPoints) {
  const auto cloud = ReadNpy(
      File("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", BytesOf<float>({1, 4, 2, 5, 3, 6})), nullptr);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->data(), BytesOf<float>({1, 2, 3, 4, 5, 6}));
}

TEST(NpyReaderTest, ReadsStructuredArrays) {
  const std::string row = BytesOf<float>({1, 2, 3}) + "\xff" + BytesOf<float>({7, 8}) + Bytes(int64_t{9});
  const std::string file = File(
      "{'descr': [('x', '<f4'), ('y', '<f4'), ('z', '<f4'), ('intensity', '|u1'), ('n', '<f4', (2,)), ('t', '<i8')], "
      "'fortran_order': False, 'shape': (2,), }",
      row + row);
  // This dict is longer than the others, so numpy pads it to the next multiple of 64.
  const std::string dict =
      "{'descr': [('x', '<f4'), ('y', '<f4'), ('z', '<f4'), ('intensity', '|u1'), ('n', '<f4', (2,)), ('t', '<i8')], "
      "'fortran_order': False, 'shape': (2,), }                                \n";
  const std::string long_file =
      std::string("\x93NUMPY\x01\x00", 8) + Bytes(static_cast<uint16_t>(dict.size())) + dict + row + row;
  const FieldSpec spec = *ParseFieldSpec("intensity:u8*0.00392156862745098");
  const auto cloud = ReadNpy(long_file, &spec);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 2u);
  ASSERT_EQ(cloud->fields_size(), 6);
  EXPECT_EQ(cloud->fields(4).count(), 2u);
  EXPECT_THAT(*FieldValues(*cloud, "z"), ElementsAre(3, 3));
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(1, 1));
  EXPECT_THAT(*FieldValues(*cloud, "t"), ElementsAre(9, 9));
  EXPECT_FALSE(ReadNpy(file, nullptr).ok());  // cut off in the middle of the dict
}

TEST(NpyReaderTest, MakesFloat64OfIntegersOf8Bytes) {
  const std::string little = Bytes(int64_t{-1}) + Bytes(int64_t{2}) + Bytes(int64_t{3});
  const std::string big = BigEndianBytes(int64_t{-1}) + BigEndianBytes(int64_t{2}) + BigEndianBytes(int64_t{3});
  const FieldSpec spec = *ParseFieldSpec("x:f64,y:f64,z:f64*2");
  for (const std::string& file : {File("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 3), }", little),
                                  File("{'descr': '>i8', 'fortran_order': True, 'shape': (1, 3), }", big),
                                  File("{'descr': [('x', '>i8'), ('y', '>i8'), ('z', '>i8')], "
                                       "'fortran_order': False, 'shape': (1,), }",
                                       big)}) {
    const auto cloud = ReadNpy(file, &spec);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_THAT(*FieldValues(*cloud, "x"), ElementsAre(-1));
    EXPECT_THAT(*FieldValues(*cloud, "z"), ElementsAre(6));
  }
  const auto unsigned_ =
      ReadNpy(File("{'descr': '<u8', 'fortran_order': False, 'shape': (1, 3), }", std::string(24, '\xff')), nullptr);
  ASSERT_TRUE(unsigned_.ok()) << unsigned_.status();
  EXPECT_THAT(*FieldValues(*unsigned_, "y"), ElementsAre(0x1p64f));
}

TEST(NpyReaderTest, PassesOverThePaddingOfAlignedStructures) {
  const auto cloud = ReadNpy(File("{'descr': [('x', '|u1'), ('', '|V3'), ('y', '<f4')], 'fortran_order': False, "
                                  "'shape': (1,), }",
                                  std::string("\x05\0\0\0", 4) + Bytes(2.5f)),
                             nullptr);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  ASSERT_EQ(cloud->fields_size(), 2);
  EXPECT_THAT(*FieldValues(*cloud, "y"), ElementsAre(2.5));
}

TEST(NpyReaderTest, FieldsNameTheColumns) {
  const std::string file =
      File("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 5), }", BytesOf<float>({9, 1, 2, 3, 100}));
  const FieldSpec spec = *ParseFieldSpec("-:f32,x:f32,y:f32,z:f32,intensity:f32*0.01");
  const auto cloud = ReadNpy(file, &spec);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_THAT(*FieldValues(*cloud, "x"), ElementsAre(1));
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(1));
  const FieldSpec too_wide = *ParseFieldSpec("a:f32,b:f32,c:f32,d:f32,e:f32,f:f32");
  EXPECT_THAT(MessageOf(file, &too_wide), HasSubstr("24 bytes"));
  const FieldSpec wrong_type = *ParseFieldSpec("x:f64");
  EXPECT_THAT(MessageOf(file, &wrong_type), HasSubstr("x:f64"));
  const FieldSpec misaligned = *ParseFieldSpec("-:u8,x:f32");
  EXPECT_THAT(MessageOf(file, &misaligned), HasSubstr("f32"));
}

TEST(NpyReaderTest, SaysWhatIsWrong) {
  EXPECT_THAT(MessageOf("not an array"), HasSubstr("begin"));
  EXPECT_THAT(MessageOf(std::string("\x93NUMPY\x09\x00\x10\x00", 10)), HasSubstr("version 9"));
  EXPECT_THAT(MessageOf(std::string("\x93NUMPY\x01\x00\xff\xff{}", 12)), HasSubstr("65535 bytes"));
  EXPECT_THAT(MessageOf(File("[]", "")), HasSubstr("not a dict"));
  EXPECT_THAT(MessageOf(File("{'shape': (2, 3), }", "")), HasSubstr("lacks"));
  EXPECT_THAT(MessageOf(File("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2, 3), }", "")), HasSubstr("True"));
  EXPECT_THAT(MessageOf(File("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }", "")), HasSubstr("'|O'"));
  EXPECT_THAT(MessageOf(File("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", "abc")),
              testing::AllOf(HasSubstr("6 items of 4 bytes"), HasSubstr("3 bytes follow")));
  EXPECT_THAT(MessageOf(File("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", std::string(12, 'a'))),
              HasSubstr("(3)"));
  EXPECT_THAT(MessageOf(File("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", std::string(24, 'a'))),
              HasSubstr("(3, 2)"));
  EXPECT_THAT(MessageOf(File("{'descr': '<c8', 'fortran_order': False, 'shape': (1, 3), }", std::string(24, 'a'))),
              HasSubstr("none of"));
  EXPECT_THAT(MessageOf(File("{'descr': [('x', '<f4'), ('y', '>f4')], 'fortran_order': False, 'shape': (1,), }",
                             std::string(8, 'a'))),
              HasSubstr("byte orders"));
  EXPECT_THAT(MessageOf(File("{'descr': '<f4', 'fortran_order': False, 'shape': (18446744073709551615, 3), }", "")),
              HasSubstr("overflows"));
  EXPECT_THAT(MessageOf(File("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 4), }", "abcd")),
              HasSubstr("16000000000 items"));
}

TEST(NpyReaderTest, AnArrayWithoutRowsIsACloudWithoutPoints) {
  const auto cloud = ReadNpy(File("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4), }", ""), nullptr);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 0u);
}

TEST(NpyReaderTest, MakesTheHeaderThatNumpyMakes) {
  // numpy.save of three uint8 writes 128 bytes of header, 10 of them before the dict.
  std::string dict = "{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }";
  dict.resize(117, ' ');
  EXPECT_EQ(MakeNpyHeader("'|u1'", {3}), std::string("\x93NUMPY\x01\x00\x76\x00", 10) + dict + "\n");
}

}  // namespace
}  // namespace voxserve::client::npy_reader_test
