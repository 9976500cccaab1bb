#include "client/cpp/io/pcd_reader.h"

#include <lzf.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "client/cpp/io/point_cloud_reader.h"
#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"
#include "tests/support/paths.h"

namespace voxserve::client::pcd_reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Header(int num_points, const std::string& data, const std::string& before_data = "") {
  return "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\nFIELDS x y z intensity\nSIZE 4 4 4 1\n"
         "TYPE F F F U\nCOUNT 1 1 1 1\nWIDTH " +
         std::to_string(num_points) + "\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS " + std::to_string(num_points) +
         "\n" + before_data + "DATA " + data + "\n";
}

void ExpectTwoPoints(const absl::StatusOr<PointCloud>& cloud) {
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 2u);
  EXPECT_EQ(cloud->point_step(), 13u);
  EXPECT_THAT(*FieldValues(*cloud, "x"), ElementsAre(1.5, -4));
  EXPECT_THAT(*FieldValues(*cloud, "y"), ElementsAre(2, 5));
  EXPECT_THAT(*FieldValues(*cloud, "z"), ElementsAre(3, 6.25));
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(7, 255));
}

const char kRows[] = "1.5 2 3 7\n-4 5 6.25 255\n";

// Returns the values of kRows field by field (all x, all y, ...), as compressed files store them.
std::string Columns() { return BytesOf<float>({1.5, -4, 2, 5, 3, 6.25}) + "\x07\xff"; }

std::string Compressed(const std::string& packed, uint32_t size) {
  return Bytes(static_cast<uint32_t>(packed.size())) + Bytes(size) + packed;
}

std::string MessageOf(const std::string& contents) {
  const auto cloud = ReadPcd(contents, nullptr);
  EXPECT_FALSE(cloud.ok());
  EXPECT_EQ(cloud.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(cloud.status().message());
}

TEST(PcdReaderTest, ReadsAscii) { ExpectTwoPoints(ReadPcd(Header(2, "ascii") + kRows, nullptr)); }

TEST(PcdReaderTest, ReadsNoPointsBinaryCompressed) {
  for (const std::string& body : {std::string(), std::string(8, '\0')}) {
    const auto cloud = ReadPcd(Header(0, "binary_compressed") + body, nullptr);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_EQ(cloud->num_points(), 0u);
    EXPECT_EQ(cloud->fields_size(), 4);
  }
  EXPECT_THAT(MessageOf(Header(1, "binary_compressed")), HasSubstr("ends before the compressed data"));
}

TEST(PcdReaderTest, ReadsAsciiWithWindowsLineEndsAndBlankLines) {
  std::string text = Header(2, "ascii") + "1.5  2\t3 7\n\n  -4 5 6.25 255";
  std::string windows;
  for (const char c : text) windows += c == '\n' ? "\r\n" : std::string(1, c);
  ExpectTwoPoints(ReadPcd(windows, nullptr));
}

TEST(PcdReaderTest, ReadsNanInAscii) {
  const auto cloud = ReadPcd(Header(1, "ascii") + "nan -inf 3 7\n", nullptr);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_TRUE(std::isnan(FieldValues(*cloud, "x")->front()));
  EXPECT_TRUE(std::isinf(FieldValues(*cloud, "y")->front()));
}

TEST(PcdReaderTest, ReadsEverySpellingOfNanAndInfinity) {
  for (const char* word : {"NaN", "-nan", "-nan(ind)", "nan(snan)", "NAN(0x8000)", "-1.#IND", "1.#QNAN0", "1.#IND00"}) {
    const auto cloud = ReadPcd(Header(1, "ascii") + word + " 2 3 7\n", nullptr);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_TRUE(std::isnan(FieldValues(*cloud, "x")->front())) << word;
  }
  for (const char* word : {"inf", "+Inf", "INFINITY", "1.#INF", "1.#INF00"}) {
    const auto cloud = ReadPcd(Header(1, "ascii") + word + " -1.#INF00 3 7\n", nullptr);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_EQ(FieldValues(*cloud, "x")->front(), HUGE_VALF) << word;
    EXPECT_EQ(FieldValues(*cloud, "y")->front(), -HUGE_VALF);
  }
  for (const char* word : {"nano", "nan(", "nan(-)", "1.#", "1.#IN", "--inf", "1.#NAN", "infinit"}) {
    EXPECT_THAT(MessageOf(Header(1, "ascii") + word + " 2 3 7\n"), HasSubstr("is not a f32 value")) << word;
  }
}

// Headers are read as PCL 1.15 reads them: io/src/pcd_io.cpp, PCDReader::readHeader.
TEST(PcdReaderTest, ReadsWhatOlderAndSparserHeadersSay) {
  const std::string fields = "FIELDS x y z intensity\nSIZE 4 4 4 1\nTYPE F F F U\n",
                    data = std::string("DATA ascii\n") + kRows;
  ExpectTwoPoints(ReadPcd(fields + "POINTS 2\n" + data, nullptr));
  ExpectTwoPoints(ReadPcd(fields + "WIDTH 2\n" + data, nullptr));
  ExpectTwoPoints(ReadPcd(fields + "WIDTH 0\nPOINTS 2\n" + data, nullptr));
  ExpectTwoPoints(ReadPcd(fields + "HEIGHT 2\nPOINTS 2\n" + data, nullptr));
  ExpectTwoPoints(ReadPcd(
      "FIELDS x gone y z intensity\nSIZE 4 8 4 4 1\nTYPE F F F F U\nCOUNT 1 0 1 1 1\nPOINTS 2\n" + data, nullptr));
  const auto floats = ReadPcd("COLUMNS x y z\nPOINTS 1\nDATA binary\n" + BytesOf<float>({1, 2, 3}), nullptr);
  ASSERT_TRUE(floats.ok()) << floats.status();
  EXPECT_THAT(*FieldValues(*floats, "z"), ElementsAre(3));
  EXPECT_THAT(MessageOf(fields + data), HasSubstr("neither WIDTH nor POINTS"));
  EXPECT_THAT(MessageOf(fields + "HEIGHT 2\nPOINTS 3\n" + data), HasSubstr("POINTS 3, but WIDTH 1 x HEIGHT 2 = 2"));
  EXPECT_THAT(MessageOf(fields + "WIDTH 0\nHEIGHT 1\nPOINTS 2\n" + data), HasSubstr("POINTS 2, but WIDTH 0"));
  EXPECT_THAT(MessageOf("FIELDS x\nSIZE 4\nPOINTS 1\nDATA ascii\n1\n"), HasSubstr("1 SIZE, 0 TYPE"));
  EXPECT_THAT(MessageOf("FIELDS x\nCOUNT 0\nPOINTS 1\nDATA binary\n1\n"), HasSubstr("all FIELDS have COUNT 0"));
}

TEST(PcdReaderTest, ReadsABoolAsAByte) {
  const std::string header = "FIELDS x valid\nSIZE 4 1\nTYPE F B\nWIDTH 2\nDATA ";
  for (const auto& cloud :
       {ReadPcd(header + "ascii\n1 0\n2 1\n", nullptr),
        ReadPcd(header + "binary\n" + BytesOf<float>({1}) + std::string(1, '\0') + BytesOf<float>({2}) + "\1",
                nullptr)}) {
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_EQ(FindField(*cloud, "valid")->type(), v1::POINT_FIELD_TYPE_UINT8);
    EXPECT_THAT(*FieldValues(*cloud, "valid"), ElementsAre(0, 1));
  }
  EXPECT_THAT(MessageOf("FIELDS x\nSIZE 4\nTYPE B\nWIDTH 1\nDATA ascii\n1\n"), HasSubstr("TYPE B SIZE 4"));
}

TEST(PcdReaderTest, ReadsBinary) {
  ExpectTwoPoints(ReadPcd(
      Header(2, "binary") + BytesOf<float>({1.5, 2, 3}) + "\x07" + BytesOf<float>({-4, 5, 6.25}) + "\xff", nullptr));
}

TEST(PcdReaderTest, ReadsBinaryPaddedWithZeros) {
  ExpectTwoPoints(ReadPcd(Header(2, "binary") + BytesOf<float>({1.5, 2, 3}) + "\x07" + BytesOf<float>({-4, 5, 6.25}) +
                              "\xff" + std::string(3906, '\0'),
                          nullptr));
}

TEST(PcdReaderTest, ReadsCompressedLiteralsWrittenByHand) {
  // In LZF a byte n below 32 announces n + 1 literal bytes.
  const std::string columns = Columns();
  const std::string packed = std::string(1, static_cast<char>(columns.size() - 1)) + columns;
  ExpectTwoPoints(
      ReadPcd(Header(2, "binary_compressed") + Compressed(packed, static_cast<uint32_t>(columns.size())), nullptr));
}

TEST(PcdReaderTest, ReadsCompressedReferencesWrittenByHand) {
  // 26 bytes of 0 in LZF: a literal 0, then a reference to the previous byte (offset 0) with 7 + 16 + 2 = 25 bytes
  // (length code 7).
  const std::string packed("\x00\x00\xe0\x10\x00", 5);
  const auto cloud = ReadPcd(Header(2, "binary_compressed") + Compressed(packed, 26), nullptr);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->data(), std::string(26, '\0'));
}

TEST(PcdReaderTest, ReadsWhatLiblzfCompresses) {
  std::string columns;
  const int count = 3000;
  for (int axis = 0; axis < 3; ++axis) {
    for (int i = 0; i < count; ++i) columns += Bytes(static_cast<float>(i % 50 + axis));
  }
  for (int i = 0; i < count; ++i) columns += static_cast<char>(i % 7);
  std::string packed(columns.size(), '\0');
  const unsigned size = lzf_compress(columns.data(), static_cast<unsigned>(columns.size()), packed.data(),
                                     static_cast<unsigned>(packed.size()));
  ASSERT_GT(size, 0u);
  packed.resize(size);
  const auto cloud = ReadPcd(Header(count, "binary_compressed") +
                                 Compressed(packed, static_cast<uint32_t>(columns.size())) + std::string(100, '\0'),
                             nullptr);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  const std::vector<float> z = *FieldValues(*cloud, "z"), intensity = *FieldValues(*cloud, "intensity");
  for (int i = 0; i < count; ++i) {
    ASSERT_EQ(z[static_cast<size_t>(i)], static_cast<float>(i % 50 + 2));
    ASSERT_EQ(intensity[static_cast<size_t>(i)], static_cast<float>(i % 7));
  }
}

TEST(PcdReaderTest, ReadsAnEmptyCloudInEveryEncoding) {
  for (const std::string& contents :
       {Header(0, "ascii"), Header(0, "binary"), Header(0, "binary_compressed") + Compressed("", 0)}) {
    const auto cloud = ReadPcd(contents, nullptr);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_EQ(cloud->num_points(), 0u);
  }
}

TEST(PcdReaderTest, SkipsPaddingAndKeepsOrganisedRows) {
  const std::string header =
      "FIELDS x _ y t z normal\nSIZE 4 1 4 8 4 4\nTYPE F U F U F F\nCOUNT 1 3 1 1 1 3\nWIDTH 1\nHEIGHT 2\n";
  const std::string row =
      BytesOf<float>({1}) + "abc" + BytesOf<float>({2}) + Bytes(uint64_t{9}) + BytesOf<float>({3, 10, 11, 12});
  const auto binary = ReadPcd(header + "DATA binary\n" + row + row, nullptr);
  const auto ascii = ReadPcd(header + "DATA ascii\n1 7 7 7 2 9 3 10 11 12\n1 7 7 7 2 9 3 10 11 12\n", nullptr);
  for (const auto& cloud : {binary, ascii}) {
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_EQ(cloud->num_points(), 2u);
    EXPECT_EQ(cloud->height(), 2u);
    ASSERT_EQ(cloud->fields_size(), 5);
    EXPECT_EQ(cloud->fields(4).count(), 3u);
    EXPECT_THAT(*FieldValues(*cloud, "t"), ElementsAre(9, 9));
    EXPECT_THAT(*FieldValues(*cloud, "z"), ElementsAre(3, 3));
    EXPECT_THAT(*FieldValues(*cloud, "normal"), ElementsAre(10, 10));
  }
}

TEST(PcdReaderTest, MakesFloat64OfIntegersOf8Bytes) {
  const std::string header = "FIELDS x y z _ intensity\nSIZE 8 8 8 8 8\nTYPE I I I U U\nWIDTH 2\n";
  const std::string first = Bytes(int64_t{-1}) + Bytes(int64_t{2}) + Bytes(-(int64_t{1} << 40)) + Bytes(uint64_t{7});
  const std::string second = Bytes(int64_t{4}) + Bytes(int64_t{5}) + Bytes(int64_t{-6}) + Bytes(uint64_t{7});
  const std::string rows = first + Bytes(uint64_t{1} << 63) + second + Bytes(uint64_t{200});
  std::string columns;
  for (size_t c = 0; c < 5; ++c) columns += rows.substr(8 * c, 8) + rows.substr(40 + 8 * c, 8);
  std::string packed;
  for (size_t begin = 0; begin < columns.size(); begin += 16) packed += "\x0f" + columns.substr(begin, 16);
  const FieldSpec spec = *ParseFieldSpec("intensity:f64*0.5");
  for (const std::string& file :
       {header + "DATA ascii\n-1 2 -1099511627776 7 9223372036854775808\n4 5 -6 7 200\n",
        header + "DATA binary\n" + rows, header + "DATA binary_compressed\n" + Compressed(packed, 80)}) {
    const auto cloud = ReadPcd(file, &spec);
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    ASSERT_EQ(cloud->fields_size(), 4);
    for (const PointField& field : cloud->fields()) EXPECT_EQ(field.type(), v1::POINT_FIELD_TYPE_FLOAT64);
    EXPECT_THAT(*FieldValues(*cloud, "x"), ElementsAre(-1, 4));
    EXPECT_THAT(*FieldValues(*cloud, "z"), ElementsAre(-0x1p40f, -6));
    EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(0x1p62f, 100));
  }
}

TEST(PcdReaderTest, FieldsGiveScaleByName) {
  const FieldSpec spec = *ParseFieldSpec("intensity:u8*0.5+1");
  const auto cloud = ReadPcd(Header(2, "ascii") + kRows, &spec);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(4.5, 128.5));
  const FieldSpec wrong_type = *ParseFieldSpec("intensity:f32");
  EXPECT_THAT(std::string(ReadPcd(Header(2, "ascii") + kRows, &wrong_type).status().message()),
              HasSubstr("intensity:f32, but the file says u8"));
  const FieldSpec wrong_name = *ParseFieldSpec("ring:u8");
  EXPECT_THAT(std::string(ReadPcd(Header(2, "ascii") + kRows, &wrong_name).status().message()), HasSubstr("'ring'"));
}

TEST(PcdReaderTest, SaysWhatIsWrong) {
  EXPECT_THAT(MessageOf(""), HasSubstr("no DATA line"));
  EXPECT_THAT(MessageOf(Header(2, "zip")), HasSubstr("zip"));
  EXPECT_THAT(MessageOf(Header(3, "ascii") + kRows), HasSubstr("2 of 3 points"));
  EXPECT_THAT(MessageOf(Header(1, "ascii") + kRows),
              HasSubstr("promises 1 points, but more follow in line 13; the header's count is wrong"));
  EXPECT_THAT(MessageOf(Header(1, "ascii") + "1 2 3\n"), HasSubstr("3 values"));
  EXPECT_THAT(MessageOf(Header(1, "ascii") + "1 2 x 4\n"), HasSubstr("'x'"));
  EXPECT_THAT(MessageOf(Header(1, "ascii") + "1 2 3 256\n"), HasSubstr("'256' is not a u8"));
  EXPECT_THAT(MessageOf(Header(2, "binary") + std::string(25, 'a')), HasSubstr("25 bytes follow"));
  EXPECT_THAT(MessageOf(Header(2, "binary") + std::string(27, 'a')), HasSubstr("27 bytes follow"));
  EXPECT_THAT(MessageOf(Header(2, "ascii", "POINTS 3\n")), HasSubstr("POINTS 3"));
  EXPECT_THAT(MessageOf("FIELDS x y\nSIZE 4\nTYPE F F\nWIDTH 1\nHEIGHT 1\nDATA ascii\n"), HasSubstr("1 SIZE"));
  EXPECT_THAT(MessageOf("FIELDS x\nSIZE 3\nTYPE F\nWIDTH 1\nHEIGHT 1\nDATA ascii\n"), HasSubstr("SIZE 3"));
  EXPECT_THAT(MessageOf("FIELDS x x\nSIZE 4 4\nTYPE F F\nWIDTH 1\nHEIGHT 1\nDATA ascii\n"), HasSubstr("twice"));
  EXPECT_THAT(MessageOf("FIELDS x\nSIZE 4\nTYPE F\nWIDTH -1\nHEIGHT 1\nDATA ascii\n"), HasSubstr("WIDTH"));
}

TEST(PcdReaderTest, RefusesHugeCountsWithoutAllocatingForThem) {
  const std::string fields = "FIELDS x\nSIZE 4\nTYPE F\n";
  EXPECT_THAT(MessageOf(fields + "WIDTH 4294967295\nHEIGHT 4294967295\nDATA binary\nabcd"),
              HasSubstr("4 bytes follow"));
  EXPECT_THAT(MessageOf(fields + "WIDTH 4000000000\nHEIGHT 1\nDATA ascii\n1\n"), HasSubstr("only 2 bytes"));
  EXPECT_THAT(MessageOf(fields + "WIDTH 18446744073709551615\nHEIGHT 2\nDATA binary\n"),
              HasSubstr("not a scan's size"));
  EXPECT_THAT(MessageOf(fields + "COUNT 1\nWIDTH +1\nHEIGHT 1\nDATA ascii\n1\n"), HasSubstr("WIDTH needs one whole"));
  EXPECT_THAT(MessageOf(fields + "COUNT 4000000000\nWIDTH 1\nHEIGHT 1\nDATA ascii\n"), HasSubstr("COUNT"));
  const std::string compressed = fields + "WIDTH 1000000000\nHEIGHT 1\nDATA binary_compressed\n";
  EXPECT_THAT(MessageOf(compressed + Compressed("ab", 4000000000u)), HasSubstr("2 compressed bytes cannot hold"));
  EXPECT_THAT(MessageOf(compressed + Compressed("ab", 12)), HasSubstr("12 uncompressed bytes"));
  EXPECT_THAT(MessageOf(compressed + Bytes(uint32_t{900}) + Bytes(uint32_t{12})), HasSubstr("900 compressed bytes"));
  EXPECT_THAT(MessageOf(compressed + "abc"), HasSubstr("ends before"));
  EXPECT_THAT(MessageOf(Header(2, "binary_compressed") + Compressed(std::string("\x20\xff", 2), 26)),
              HasSubstr("damaged"));
}

TEST(PcdReaderTest, ReadsARealDrive) {
  const std::string path = support::SharedData() + "/kitti-drive/0000000000.pcd";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path << " (a scan that is not part of the repository)";
  const auto cloud = ReadPointCloud(path);
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 119978u);
  EXPECT_EQ(cloud->data().size(), 119978u * 16);
  const std::vector<float> intensities = *FieldValues(*cloud, "intensity");
  for (const float intensity : intensities) {
    ASSERT_GE(intensity, 0);
    ASSERT_LE(intensity, 1);
  }
  const std::vector<float> xs = *FieldValues(*cloud, "x");
  float farthest = 0;
  for (const float x : xs) farthest = std::max(farthest, std::abs(x));
  EXPECT_GT(farthest, 30);
  EXPECT_LT(farthest, 121);  // an HDL-64 measures up to 120 m
}

TEST(PcdReaderTest, IntegerIntensitiesAreSharesOfTheirLargestValue) {
  const TemporaryFolder folder;
  const auto values = [&](const std::string& name, const std::string& size, const std::string& fields) {
    const std::string path = folder.Write("a.pcd", "FIELDS x " + name + "\nSIZE 4 " + size +
                                                       "\nTYPE F U\nWIDTH 3\nHEIGHT 1\nPOINTS 3\nDATA ascii\n"
                                                       "1 0\n2 51\n3 255\n");
    const auto cloud = ReadPointCloud(path, {.fields = fields});
    return cloud.ok() ? *FieldValues(*cloud, name) : std::vector<float>();
  };
  EXPECT_THAT(values("intensity", "1", ""), ElementsAre(0, 0.2f, 1));
  EXPECT_THAT(values("reflectivity", "2", ""), ElementsAre(0, 51.0f / 65535, 255.0f / 65535));
  EXPECT_THAT(values("intensity", "1", "x:f32*2"), ElementsAre(0, 0.2f, 1));
  EXPECT_THAT(values("intensity", "1", "intensity:u8"), ElementsAre(0, 51, 255));
  EXPECT_THAT(values("intensity", "1", "intensity:u8*0.5"), ElementsAre(0, 25.5f, 127.5f));
  EXPECT_THAT(values("intensity", "4", ""), ElementsAre(0, 51, 255));
  EXPECT_THAT(values("ring", "1", ""), ElementsAre(0, 51, 255));
  EXPECT_THAT(values("Intensity", "1", ""), ElementsAre(0, 0.2f, 1));
  EXPECT_THAT(values("intensity", "1", "Intensity:u8*0.5"), ElementsAre(0, 25.5f, 127.5f));
}

}  // namespace
}  // namespace voxserve::client::pcd_reader_test
