// Compares real scans with published counts: the voxels and the pairs of a 3 x 3 x 3 submanifold convolution at every
// level of MinkUNet (voxels of 5 cm, rounded, minimum subtracted; each level halves the coordinates and rounds down).

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/conv/rulebook_search.h"
#include "tests/kernels/coordinates/geometry_testing.h"
#include "tests/kernels/points/voxelize_testing.h"
#include "tests/support/npz.h"
#include "tests/support/paths.h"

namespace voxserve::kernels::real_scans_test {
namespace {

using fixtures::RunOutputCoordinates;
using fixtures::VoxelizeBuffers;
using ::testing::ElementsAre;

std::string Scan063() { return support::SourceDir() + "/tests/golden/pandaset_063.bin"; }
std::string Scan070() { return support::SourceDir() + "/deploy/scans/pandaset_070.bin"; }

// Returns the file's points: float32 x, y, z and intensity each.
std::vector<float> ReadScan(const std::filesystem::path& path) {
  std::vector<float> points(std::filesystem::file_size(path) / sizeof(float));
  std::ifstream(path, std::ios::binary)
      .read(reinterpret_cast<char*>(points.data()), static_cast<std::streamsize>(points.size() * sizeof(float)));
  return points;
}

// Returns the keys of the five levels, the finest first.
std::vector<std::vector<uint64_t>> Pyramid(const std::vector<float>& points, ThreadPool& pool) {
  VoxelizeParams params;
  for (float& size : params.voxel_size) size = 0.05F;
  params.num_points = static_cast<int64_t>(points.size() / 4);
  params.num_samples = 1;
  const std::vector<int64_t> point_begin = {0, params.num_points};
  params.point_begin = point_begin.data();
  params.axes = ConstRows::Packed(points.data(), DType::kFloat32, params.num_points, 4);
  VoxelizeBuffers buffers;
  buffers.Attach(params);
  cpu::Voxelize(params, pool);
  buffers.CutToSize();
  std::vector<std::vector<uint64_t>> levels = {buffers.keys};
  while (levels.size() < 5) {
    OutputCoordinatesParams down;
    down.geometry.kernel_size = down.geometry.stride = {2, 2, 2, 1};
    down.num_samples = 1;
    down.in_keys = levels.back().data();
    down.num_in = static_cast<int64_t>(levels.back().size());
    levels.push_back(RunOutputCoordinates(down, pool));
  }
  return levels;
}

std::vector<size_t> Sizes(const std::vector<std::vector<uint64_t>>& levels) {
  std::vector<size_t> sizes;
  for (const auto& level : levels) sizes.push_back(level.size());
  return sizes;
}

TEST(RealScansTest, SemanticKittiPyramidMatchesItsPublishedSizes) {
  const std::string path = support::SharedData() + "/semantickitti-00/000000.bin";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "needs " << path << ", which may not be part of this repository";
  ThreadPool pool(2);
  const auto levels = Pyramid(ReadScan(path), pool);
  EXPECT_THAT(Sizes(levels), ElementsAre(91852, 60236, 31883, 14454, 5908));
  std::vector<int64_t> pairs;
  for (const auto& level : levels) {
    const RulebookSearchParams params{.geometry = {.kernel_size = {3, 3, 3, 1}, .padding = {1, 1, 1, 0}},
                                      .in_keys = level.data(),
                                      .num_in = static_cast<int64_t>(level.size()),
                                      .out_keys = level.data(),
                                      .num_out = static_cast<int64_t>(level.size())};
    Rulebook rulebook;
    cpu::SearchRulebook(params, pool, rulebook);
    pairs.push_back(rulebook.View().num_pairs());
  }
  EXPECT_THAT(pairs, ElementsAre(345532, 365218, 238211, 122064, 54656));
}

TEST(RealScansTest, GoldenScansHaveTheirPublishedLevels) {
  ThreadPool pool(2);
  EXPECT_THAT(Sizes(Pyramid(ReadScan(Scan063()), pool)), ElementsAre(87434, 63088, 34625, 16408, 7094));
  EXPECT_THAT(Sizes(Pyramid(ReadScan(Scan070()), pool)), ElementsAre(86424, 62504, 34266, 16325, 7260));
}

TEST(RealScansTest, GoldenScanHasItsPublishedCoordinatesInOrder) {
  ThreadPool pool(2);
  const auto levels = Pyramid(ReadScan(Scan070()), pool);
  const auto golden = support::ReadNpz(support::SourceDir() + "/tests/golden/pandaset_070_intermediate.npz");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::vector<int32_t> coords = golden->at("x0_coords").values<int32_t>();
  const CoordinateKey layout(3);
  std::vector<uint64_t> keys;
  for (size_t at = 0; at < coords.size(); at += 3) {
    keys.push_back(layout.Pack(0, {coords[at], coords[at + 1], coords[at + 2], 0}));
  }
  EXPECT_EQ(levels[0], keys);
}

}  // namespace
}  // namespace voxserve::kernels::real_scans_test
