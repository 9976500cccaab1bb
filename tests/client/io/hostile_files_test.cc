// Tests all readers of client/cpp/io on damaged files. If a file is cut off or changed anywhere, its reader must return
// an error, or a cloud whose data agrees with its fields. Under the sanitizers these tests also find reads out of
// bounds.

#include <functional>
#include <random>

#include "client/cpp/io/npy_reader.h"
#include "client/cpp/io/pcd_reader.h"
#include "client/cpp/io/ply_reader.h"
#include "client/cpp/io/raw_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/temporary_folder.h"

namespace voxserve::client::hostile_files_test {
namespace {

using Reader = std::function<absl::StatusOr<PointCloud>(std::string)>;

struct Specimen {
  std::string name;
  Reader read;
  std::string contents;
};

std::vector<Specimen> Specimens() {
  const Reader pcd = [](std::string contents) { return ReadPcd(std::move(contents), nullptr); };
  const Reader ply = [](std::string contents) { return ReadPly(std::move(contents), nullptr); };
  const Reader npy = [](std::string contents) { return ReadNpy(std::move(contents), nullptr); };
  const std::string pcd_header =
      "VERSION .7\nFIELDS x y z _ n\nSIZE 4 4 4 1 2\nTYPE F F F U I\nCOUNT 1 1 1 3 2\nWIDTH 4\nHEIGHT 2\nPOINTS 8\n";
  const std::string ply_header =
      " 1.0\nelement sensor 1\nproperty int id\nelement vertex 8\nproperty float x\nproperty float y\nproperty "
      "double z\nend_header\n";
  const std::string dict =
      "{'descr': [('x', '<f4'), ('y', '<f4'), ('', '|V2'), ('z', '<f4', (2,))], 'fortran_order': "
      "False, 'shape': (8,), }\n";
  const std::string table = "{'descr': '<f2', 'fortran_order': True, 'shape': (8, 3), }\n";
  const std::string magic("\x93NUMPY\x01\x00", 8);
  std::string ascii_points, ascii_vertices = "1\n";
  for (int i = 0; i < 8; ++i) {
    ascii_points += "1 -2.5 3e2 1 2 3 7 8\n";
    ascii_vertices += "1 2.5 nan\n";
  }
  // 152 bytes of 'a' in LZF: one literal, then a reference to the previous byte with a length of 7 + 142 + 2 bytes.
  const std::string packed("\x00\x61\xe0\x8e\x00", 5);
  return {
      {"pcd ascii", pcd, pcd_header + "DATA ascii\n" + ascii_points},
      {"pcd binary", pcd, pcd_header + "DATA binary\n" + std::string(8 * 19, 'a')},
      {"pcd compressed", pcd,
       pcd_header + "DATA binary_compressed\n" + Bytes(uint32_t{5}) + Bytes(uint32_t{152}) + packed},
      {"ply ascii", ply, "ply\nformat ascii" + ply_header + ascii_vertices},
      {"ply binary", ply, "ply\nformat binary_big_endian" + ply_header + std::string(4 + 8 * 16, 'a')},
      {"pcd without width", pcd,
       "FIELDS x y b\nSIZE 4 8 1\nTYPE F F B\nCOUNT 1 0 2\nPOINTS 8\nDATA binary\n" + std::string(8 * 6, 'a')},
      {"ply lists", ply,
       "ply\nformat binary_little_endian 1.0\nelement a 1\nproperty list uchar short b\nelement vertex 8\nproperty "
       "float x\nproperty list ushort char c\nend_header\n\x01zz" +
           std::string(8 * 6, '\0')},
      {"ply ascii lists", ply,
       "ply\nformat ascii 1.0\nelement vertex 8\nproperty list uchar int c\nproperty float x\nend_header\n"
       "0 1\n1 5 2\n0 -nan(ind)\n0 4\n2 1 2 5\n0 6\n0 7\n0 8\n"},
      {"npy structured", npy, magic + Bytes(static_cast<uint16_t>(dict.size())) + dict + std::string(8 * 18, 'a')},
      {"npy table", npy, magic + Bytes(static_cast<uint16_t>(table.size())) + table + std::string(8 * 6, 'a')},
  };
}

// Expects that the cloud's data has the size that its fields and its number of points require.
void ExpectConsistent(const absl::StatusOr<PointCloud>& cloud) {
  if (!cloud.ok()) {
    EXPECT_EQ(cloud.status().code(), absl::StatusCode::kInvalidArgument) << cloud.status();
    return;
  }
  EXPECT_EQ(cloud->data().size(), cloud->num_points() * cloud->point_step());
  for (const PointField& field : cloud->fields()) {
    const auto values = FieldValues(*cloud, field.name());
    EXPECT_TRUE(values.ok()) << values.status();
  }
}

TEST(HostileFilesTest, TheSpecimensThemselvesAreRead) {
  for (const Specimen& specimen : Specimens()) {
    const auto cloud = specimen.read(specimen.contents);
    ASSERT_TRUE(cloud.ok()) << specimen.name << ": " << cloud.status();
    EXPECT_EQ(cloud->num_points(), 8u) << specimen.name;
    ExpectConsistent(cloud);
  }
}

TEST(HostileFilesTest, CutOffAnywhere) {
  for (const Specimen& specimen : Specimens()) {
    for (size_t size = 0; size < specimen.contents.size(); ++size) {
      ExpectConsistent(specimen.read(specimen.contents.substr(0, size)));
    }
  }
}

TEST(HostileFilesTest, ChangedAnywhere) {
  std::mt19937 random(7);
  for (const Specimen& specimen : Specimens()) {
    for (int round = 0; round < 4000; ++round) {
      std::string contents = specimen.contents;
      const int num_changes = 1 + static_cast<int>(random() % 4);
      for (int i = 0; i < num_changes; ++i) {
        const size_t place = random() % contents.size();
        switch (random() % 4) {
          case 0:
            contents[place] = static_cast<char>(random());
            break;
          case 1:
            contents[place] = static_cast<char>('0' + random() % 10);
            break;
          case 2:
            contents.insert(place, std::string(1 + random() % 12, '9'));
            break;
          default:
            contents.erase(place, 1 + random() % 8);
            if (contents.empty()) contents.push_back('x');
        }
      }
      ExpectConsistent(specimen.read(contents));
    }
  }
}

// Each file has a wrong word of 36 bytes: 30 times "a" and two characters of three bytes. Readers show at most 32 bytes
// of a word in their errors, which would cut the first of these characters.
TEST(HostileFilesTest, NoErrorCutsACharacter) {
  const std::string word = std::string(30, 'a') + "\u20ac\u20ac";
  const std::string shown(30, 'a');
  const auto npy = [](const std::string& dict) {
    return std::string("\x93NUMPY\x01\x00", 8) + Bytes(static_cast<uint16_t>(dict.size())) + dict;
  };
  struct Case {
    absl::StatusOr<PointCloud> cloud;
    std::string message;
  };
  const std::string pcd = "FIELDS x\nSIZE 4\nTYPE F\nWIDTH 1\nHEIGHT 1\nDATA ";
  const std::string vertex = " 1.0\nelement vertex 1\nproperty float x\nend_header\n";
  const Case cases[] = {
      {ReadPcd(pcd + word + "\n", nullptr), "DATA " + shown + " is none of"},
      {ReadPcd(pcd + "ascii\n" + word + "\n", nullptr), "'" + shown + "' is not a f32 value"},
      {ReadPly("ply\n" + word + "\nend_header\n", nullptr), "begins with '" + shown + "'"},
      {ReadPly("ply\nformat " + word + vertex, nullptr), "format '" + shown + "' is none of"},
      {ReadNpy(npy("{'descr': '" + word + "', 'fortran_order': False, 'shape': (1, 3), }"), nullptr),
       "dtype '" + shown + "' is not one of"},
      {ReadNpy(npy("{'" + word + "': 1, }"), nullptr), "the header has the key '" + shown + "'"},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(one.cloud.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(one.cloud.status().message()), testing::HasSubstr(one.message));
  }
}

}  // namespace
}  // namespace voxserve::client::hostile_files_test
