// Tests ReadPointCloud on .bin and .pcd.bin files, and its rules for all formats: which reader it chooses, and that its
// errors name the file.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "client/cpp/io/point_cloud_reader.h"
#include "gmock/gmock.h"
#include "tests/client/temporary_folder.h"
#include "tests/support/paths.h"

namespace voxserve::client::raw_reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string MessageOf(const absl::StatusOr<PointCloud>& cloud) { return std::string(cloud.status().message()); }

// Returns the values of a file of packed floats, without the code under test.
std::vector<float> FloatsOf(const std::string& path) {
  std::vector<float> floats(std::filesystem::file_size(path) / sizeof(float));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(floats.data()), static_cast<std::streamsize>(floats.size() * sizeof(float)));
  return floats;
}

TEST(RawReaderTest, ReadsKitti) {
  TemporaryFolder folder;
  const auto cloud = ReadPointCloud(folder.Write("scan.bin", BytesOf<float>({1, -2, 3, 0.25, 4, 5, -6, 1})));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 2u);
  EXPECT_EQ(cloud->point_step(), 16u);
  EXPECT_THAT(*FieldValues(*cloud, "x"), ElementsAre(1, 4));
  EXPECT_THAT(*FieldValues(*cloud, "z"), ElementsAre(3, -6));
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(0.25, 1));
}

TEST(RawReaderTest, ScalesNuScenesIntensity) {
  TemporaryFolder folder;
  const auto cloud = ReadPointCloud(folder.Write("a.pcd.bin", BytesOf<float>({1, 2, 3, 255, 7, 4, 5, 6, 51, 31})));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 2u);
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(1, testing::FloatEq(0.2f)));
  EXPECT_THAT(*FieldValues(*cloud, "ring"), ElementsAre(7, 31));
}

TEST(RawReaderTest, AnEmptyFileIsACloudWithoutPoints) {
  TemporaryFolder folder;
  const auto cloud = ReadPointCloud(folder.Write("empty.bin", ""));
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 0u);
  EXPECT_EQ(cloud->fields_size(), 4);
}

TEST(RawReaderTest, FieldsOverrideTheExtension) {
  TemporaryFolder folder;
  const std::string path = folder.Write("waymo.bin", BytesOf<float>({1, 2, 3, 4, 5}));
  EXPECT_THAT(MessageOf(ReadPointCloud(path)), testing::AllOf(HasSubstr("20 bytes"), HasSubstr("16-byte points"),
                                                              HasSubstr("--fields"), HasSubstr(path)));
  const auto cloud = ReadPointCloud(path, {.fields = "x:f32,y:f32,z:f32,intensity:f32*0.5,-:f32"});
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_EQ(cloud->num_points(), 1u);
  EXPECT_EQ(cloud->fields_size(), 4);
  EXPECT_THAT(*FieldValues(*cloud, "intensity"), ElementsAre(2));
}

TEST(RawReaderTest, AnUnknownExtensionIsReadByItsFields) {
  TemporaryFolder folder;
  const std::string path = folder.Write("scan.raw", BytesOf<int16_t>({100, -200, 300}));
  EXPECT_THAT(MessageOf(ReadPointCloud(path)), HasSubstr("unknown extension"));
  const auto cloud = ReadPointCloud(path, {.fields = "x:i16*0.01,y:i16*0.01,z:i16*0.01"});
  ASSERT_TRUE(cloud.ok()) << cloud.status();
  EXPECT_THAT(*FieldValues(*cloud, "y"), ElementsAre(testing::FloatEq(-2)));
}

TEST(RawReaderTest, TextsAndArchivesAreNoRawPoints) {
  TemporaryFolder folder;
  const ReadOptions options = {.fields = "x:f32,y:f32,z:f32,intensity:f32"};
  for (const char* name : {"a.csv", "a.XYZ", "a.npz", "a.bin.gz", "a.mcap"}) {
    const std::string path = folder.Write(name, "1,2,3,.5\n4,5,6,\n");  // 16 bytes, one point of the spec
    EXPECT_THAT(MessageOf(ReadPointCloud(path, options)), AllOf(HasSubstr(path), HasSubstr("save the points as .npy")));
    EXPECT_THAT(MessageOf(ReadPointCloud(path)), HasSubstr("save the points as .npy"));
  }
  const std::string las = folder.Write("a.las", "LASF");
  EXPECT_THAT(MessageOf(ReadPointCloud(las, options)), HasSubstr("python -m voxserve infer"));
}

TEST(RawReaderTest, RefusesAnExtensionBeforeItReads) {
  TemporaryFolder folder;
  const std::pair<const char*, const char*> cases[] = {
      {"drive.mcap", "voxserve.bag labels recordings"}, {"a.las", "voxserve infer"}, {"a.dat", "unknown extension"}};
  for (const auto& [name, text] : cases) {
    const std::string path = folder.Write(name, "");
    std::filesystem::resize_file(path, uintmax_t{3} << 30);  // a hole
    EXPECT_THAT(MessageOf(ReadPointCloud(path)), AllOf(HasSubstr(path), HasSubstr(text)));
    std::filesystem::remove(path);
    EXPECT_EQ(ReadPointCloud(path).status().code(), absl::StatusCode::kNotFound);
  }
}

TEST(RawReaderTest, OtherFormatsAreNoRawPoints) {
  TemporaryFolder folder;
  const std::pair<std::string, const char*> cases[] = {
      {"\x93NUMPY\x01", ".npy files do; it is read as one only by the extension .npy"},
      {"# .PCD v0.7\n", ".pcd files do; it is read as one only by the extension .pcd"},
      {"ply\r\nformat", ".ply files do; it is read as one only by the extension .ply"},
      {"LASF", ".las files do; python -m voxserve infer reads it by the extension .las"},
      {"ARROW1", ".feather files do; python -m voxserve infer reads it by the extension .feather"},
      {"PK\x03\x04", ".npz files do; save its array as .npy"},
      {"\x89HDF\r\n\x1a\n", ".h5 files do; save its points as .npy"},
      {"\x89MCAP0\r\n", ".mcap files do; python -m voxserve.bag"},
      {"\x1f\x8b\x08\x08", ".gz files do; unpack it"}};
  for (auto [contents, text] : cases) {
    contents.resize(32);  // two points of four floats
    const std::string path = folder.Write("a.bin", contents);
    for (const char* fields : {"", "x:f32,y:f32,z:f32,intensity:f32"}) {
      EXPECT_THAT(MessageOf(ReadPointCloud(path, {.fields = fields})),
                  AllOf(HasSubstr(path), HasSubstr("the file begins as "), HasSubstr(text)));
    }
  }
}

TEST(RawReaderTest, PointsThatBeginAlmostAsOtherFormatsAreRead) {
  TemporaryFolder folder;
  for (std::string contents : {"\x1f\x8b\x08\x41", "\x89HDF", "\x89MCA"}) {  // 8.5, 12562.1 and 12.3 m
    contents.resize(16);
    const auto cloud = ReadPointCloud(folder.Write("a.bin", contents));
    ASSERT_TRUE(cloud.ok()) << cloud.status();
    EXPECT_EQ(cloud->num_points(), 1u);
  }
}

TEST(RawReaderTest, NamesFilesThatCannotBeRead) {
  TemporaryFolder folder;
  EXPECT_EQ(ReadPointCloud("/no/such/scan.bin").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(ReadPointCloud("/no/such/scan.bin")), HasSubstr("/no/such/scan.bin"));
  EXPECT_THAT(MessageOf(ReadPointCloud(folder.path())), HasSubstr("not a file"));
  EXPECT_THAT(MessageOf(ReadPointCloud(folder.Write("a.bin", ""), {.fields = "x:q"})), HasSubstr("'x:q'"));
}

TEST(RawReaderTest, KnowsScansByExtension) {
  for (const char* name : {"a.bin", "b.PCD", "c.pcd.bin", "d.ply", "e.npy"}) EXPECT_TRUE(IsPointCloudFile(name));
  for (const char* name : {"a.label", "b", "c.png", "bin"}) EXPECT_FALSE(IsPointCloudFile(name));
}

TEST(RawReaderTest, ReadsRealScans) {
  const std::string data = support::SharedData();
  const std::string kitti = data + "/semantickitti-00/000000.bin";
  const std::string nuscenes = data + "/nuscenes/n008-2018-08-01-15-16-36-0400__LIDAR_TOP__1533151611446636.pcd.bin";
  if (!std::filesystem::exists(kitti) || !std::filesystem::exists(nuscenes)) {
    GTEST_SKIP() << "no " << kitti << " or " << nuscenes << " (real scans that are not part of the repository)";
  }
  const auto scan = ReadPointCloud(kitti);
  ASSERT_TRUE(scan.ok()) << scan.status();
  EXPECT_EQ(scan->num_points(), 124668u);
  const std::vector<float> expected = FloatsOf(kitti);
  const std::vector<float> y = *FieldValues(*scan, "y");
  for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], expected[4 * i + 1]);

  const auto sweep = ReadPointCloud(nuscenes);
  ASSERT_TRUE(sweep.ok()) << sweep.status();
  const std::vector<float> raw = FloatsOf(nuscenes);
  const std::vector<float> intensity = *FieldValues(*sweep, "intensity");
  ASSERT_EQ(intensity.size() * 5, raw.size());
  for (size_t i = 0; i < intensity.size(); ++i) ASSERT_NEAR(intensity[i], raw[5 * i + 3] / 255, 1e-6);
}

}  // namespace
}  // namespace voxserve::client::raw_reader_test
