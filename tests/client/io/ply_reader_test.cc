#include "client/cpp/io/ply_reader.h"

#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::ply_reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Header(const std::string& format, const std::string& before_vertices = "", int num_vertices = 2) {
  return "ply\nformat " + format + " 1.0\ncomment made by hand\n" + before_vertices + "element vertex " +
         std::to_string(num_vertices) +
         "\nproperty float x\nproperty double y\nproperty float32 z\nproperty uchar scalar_Intensity\n"
         "element face 1\nproperty list uchar int vertex_indices\nend_header\n";
}

void ExpectTwoPoints(const absl::StatusOr<PointCloud>& cloud) {
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 2u);
  EXPECT_EQ(cloud->data().size(), 2u * 17);
  EXPECT_THAT(*FieldValues(*cloud, "x"), ElementsAre(1.5, -4));
  EXPECT_THAT(*FieldValues(*cloud, "y"), ElementsAre(2, 5));
  EXPECT_THAT(*FieldValues(*cloud, "z"), ElementsAre(3, 6.25));
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(7, 255));
}

std::string LittleEndianRows() {
  return Bytes(1.5f) + Bytes(2.0) + Bytes(3.0f) + "\x07" + Bytes(-4.0f) + Bytes(5.0) + Bytes(6.25f) + "\xff";
}

std::string MessageOf(const std::string& contents) {
  const auto cloud = ReadPly(contents, nullptr);
  EXPECT_FALSE(cloud.ok());
  EXPECT_EQ(cloud.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(cloud.status().message());
}

const char kFace[] = "\x03\0\0\0\0\1\0\0\0\0\0\0\0";

TEST(PlyReaderTest, ReadsAscii) {
  ExpectTwoPoints(ReadPly(Header("ascii") + "1.5 2 3 7\n-4 5 6.25 255\n3 0 1 0\n", nullptr));
}

TEST(PlyReaderTest, ReadsLittleEndian) {
  ExpectTwoPoints(ReadPly(Header("binary_little_endian") + LittleEndianRows() + std::string(kFace, 13), nullptr));
}

TEST(PlyReaderTest, ReadsBigEndian) {
  const std::string rows = BigEndianBytes(1.5f) + BigEndianBytes(2.0) + BigEndianBytes(3.0f) + "\x07" +
                           BigEndianBytes(-4.0f) + BigEndianBytes(5.0) + BigEndianBytes(6.25f) + "\xff";
  const auto cloud = ReadPly(Header("binary_big_endian") + rows, nullptr);
  ExpectTwoPoints(cloud);
  EXPECT_TRUE(cloud->is_bigendian());
}

TEST(PlyReaderTest, PassesOverElementsBeforeTheVertices) {
  const std::string sensor = "element sensor 2\nproperty short id\nproperty float angle\n";
  ExpectTwoPoints(ReadPly(Header("ascii", sensor) + "1 0.5\n2 0.25\n1.5 2 3 7\n-4 5 6.25 255\n", nullptr));
  ExpectTwoPoints(ReadPly(Header("binary_little_endian", sensor) + std::string(12, 'q') + LittleEndianRows(), nullptr));
}

// Returns a header whose vertices have the lists of CloudCompare#1455, between and behind their values.
std::string HeaderWithLists(const std::string& format) {
  return "ply\nformat " + format +
         " 1.0\nelement tag 2\nproperty list uchar short names\nelement vertex 2\nproperty list int double first\n"
         "property float x\nproperty double y\nproperty float z\nproperty list uint8 float64 middle\n"
         "property uchar scalar_Intensity\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n";
}

TEST(PlyReaderTest, PassesOverLists) {
  ExpectTwoPoints(
      ReadPly(HeaderWithLists("ascii") + "2 8 9\n0\n1 0.5 1.5 2 3 0 7\n0 -4 5 6.25 3 1 2 nan 255\n3 0 1 0\n", nullptr));
  const std::string little = Bytes(uint8_t{1}) + Bytes(int16_t{9}) + Bytes(uint8_t{0}) +  //
                             Bytes(int32_t{1}) + Bytes(0.5) + Bytes(1.5f) + Bytes(2.0) + Bytes(3.0f) +
                             Bytes(uint8_t{0}) + "\x07" +  //
                             Bytes(int32_t{0}) + Bytes(-4.0f) + Bytes(5.0) + Bytes(6.25f) + Bytes(uint8_t{2}) +
                             Bytes(1.0) + Bytes(2.0) + "\xff";
  ExpectTwoPoints(ReadPly(HeaderWithLists("binary_little_endian") + little + std::string(kFace, 13), nullptr));
  const std::string big = Bytes(uint8_t{1}) + BigEndianBytes(int16_t{9}) + Bytes(uint8_t{0}) +  //
                          BigEndianBytes(int32_t{1}) + BigEndianBytes(0.5) + BigEndianBytes(1.5f) +
                          BigEndianBytes(2.0) + BigEndianBytes(3.0f) + Bytes(uint8_t{0}) + "\x07" +  //
                          BigEndianBytes(int32_t{0}) + BigEndianBytes(-4.0f) + BigEndianBytes(5.0) +
                          BigEndianBytes(6.25f) + Bytes(uint8_t{0}) + "\xff";
  ExpectTwoPoints(ReadPly(HeaderWithLists("binary_big_endian") + big, nullptr));
  for (size_t size = 0; size < little.size(); ++size) {
    EXPECT_THAT(MessageOf(HeaderWithLists("binary_little_endian") + little.substr(0, size)),
                HasSubstr("the file ends within element "));
  }
}

TEST(PlyReaderTest, RefusesListsThatAreWrong) {
  const std::string vertices = "ply\nformat binary_little_endian 1.0\nelement vertex 1\nproperty float x\n";
  EXPECT_THAT(MessageOf(vertices + "property list float int n\nend_header\n"), HasSubstr("list 'n' of element"));
  EXPECT_THAT(MessageOf(vertices + "property list int quad n\nend_header\n"), HasSubstr("list COUNT TYPE NAME"));
  EXPECT_THAT(MessageOf(vertices + "property list char int n\nend_header\n" + Bytes(1.0f) + "\xff"),
              HasSubstr("has -1 values"));
  EXPECT_THAT(MessageOf(vertices + "property list uint double n\nend_header\n" + Bytes(1.0f) + "\xff\xff\xff\xff"),
              HasSubstr("ends within element 0 of the 1 of 'vertex'"));
  EXPECT_THAT(MessageOf(HeaderWithLists("ascii") + "0\n0\n9 1 2 3\n\n\n\n\n\n\n\n\n\n\n\n\n1\n"),
              HasSubstr("a list lacks 6 of its values"));
  EXPECT_THAT(MessageOf(HeaderWithLists("ascii") + "0\n0\n-1 1 2 3 0 4\n\n\n\n"),
              HasSubstr("'-1' is not a list's number"));
}

TEST(PlyReaderTest, ReadsNoVertices) {
  for (const char* format : {"ascii", "binary_little_endian"}) {
    const auto cloud = ReadPly(Header(format, "", 0), nullptr);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_EQ(cloud->num_points(), 0u);
  }
}

TEST(PlyReaderTest, FieldsGiveScaleByName) {
  const FieldSpec spec = *ParseFieldSpec("intensity:u8*2");
  const auto cloud = ReadPly(Header("binary_little_endian") + LittleEndianRows(), &spec);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(14, 510));
}

TEST(PlyReaderTest, SaysWhatIsWrong) {
  EXPECT_THAT(MessageOf(""), HasSubstr("begin with 'ply'"));
  EXPECT_THAT(MessageOf("ply\nformat ascii 1.0\n"), HasSubstr("no end_header"));
  EXPECT_THAT(MessageOf("ply\nformat ascii 1.0\nend_header\n"), HasSubstr("no element 'vertex'"));
  EXPECT_THAT(MessageOf("ply\nhello\nend_header\n"), HasSubstr("'hello'"));
  EXPECT_THAT(MessageOf("ply\nelement vertex many\nend_header\n"), HasSubstr("element NAME COUNT"));
  EXPECT_THAT(MessageOf("ply\nelement vertex +1\nend_header\n"), HasSubstr("element NAME COUNT"));
  EXPECT_THAT(MessageOf("ply\nelement vertex 1\nproperty vector x\nend_header\n"), HasSubstr("property TYPE NAME"));
  EXPECT_THAT(MessageOf("ply\nelement vertex 1\nproperty float x\nproperty float x\nend_header\n"), HasSubstr("twice"));
  EXPECT_THAT(MessageOf("ply\nformat ascii 1.0\nelement vertex 1\nproperty list uchar int x\nend_header\n"),
              HasSubstr("no properties"));
  EXPECT_THAT(MessageOf(Header("ascii") + "1 2 3 4\n1 2 3 4\n3 0 1 0\n1 2 3 4\n"),
              HasSubstr("promises 2 points, but more follow in line 15"));
  EXPECT_THAT(MessageOf("ply\nformat ascii 1.0\nelement vertex 1\nend_header\n"), HasSubstr("no properties"));
  EXPECT_THAT(MessageOf(Header("binary")), HasSubstr("'binary'"));
  EXPECT_THAT(MessageOf(Header("binary_little_endian") + "short"),
              testing::AllOf(HasSubstr("2 vertices of 17 bytes"), HasSubstr("5 bytes follow")));
  EXPECT_THAT(MessageOf(Header("ascii", "", 3) + "1 2 3 4\n"), HasSubstr("3 points of 4 values, but only 8 bytes"));
  EXPECT_THAT(MessageOf(Header("ascii") + "1 2 3 4\n        \n"), HasSubstr("1 of 2 points"));
}

TEST(PlyReaderTest, RefusesHugeCountsWithoutAllocatingForThem) {
  const std::string properties = "\nproperty float x\nend_header\n";
  for (const char* count : {"4000000000", "18446744073709551615"}) {
    for (const char* format : {"ascii", "binary_little_endian"}) {
      EXPECT_THAT(
          MessageOf("ply\nformat " + std::string(format) + " 1.0\nelement vertex " + count + properties + "1\n"),
          HasSubstr(count));
    }
    EXPECT_THAT(
        MessageOf(Header("binary_little_endian", "element sensor " + std::string(count) + "\nproperty float angle\n") +
                  LittleEndianRows()),
        HasSubstr("'sensor'"));
  }
}

}  // namespace
}  // namespace voxserve::client::ply_reader_test
