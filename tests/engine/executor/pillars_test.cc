// Tests the operators of pillar networks, through the loader, the compiler and a device, against loops over the points:
// point_offsets (offsets of points from their voxel), and point_to_voxel with max_points, which reduces only a voxel's
// first points, and with the row of an empty slot.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/executor/expected_scores.h"

namespace voxserve::pillars_test {
namespace {

using support::TestModel;
using Point = std::array<float, 4>;  // x, y, z, f
using Cell = std::array<int, 3>;
using Row = std::vector<double>;

constexpr std::array<float, 3> kSize = {0.5f, 0.4f, 4}, kLow = {-3, -2, -1}, kHigh = {3, 2, 3};

// Describes the voxels of a test. Cell 0 begins at the lower end of the range (is_of_range), or at coordinate 0.
struct Grid {
  bool is_of_range = true;
  bool is_floor = true;

  std::string Text() const {
    return absl::StrCat(
        "nodes { name: \"voxels\" voxelize { voxel_size: [0.5, 0.4, 4] rounding: ROUNDING_",
        is_floor ? "FLOOR" : "HALF_EVEN", " origin: ORIGIN_", is_of_range ? "RANGE" : "ZERO",
        " range_min: [-3, -2, -1] range_max: [3, 2, 3] reduce: REDUCE_FIRST features { name: \"x\" } features { name: "
        "\"y\" } features { name: \"z\" } features { name: \"f\" } } }\n");
  }
  // Returns false if the point has no voxel.
  bool Find(const Point& point, Cell* cell) const {
    for (size_t axis = 0; axis < 3; ++axis) {
      if (!(point[axis] >= kLow[axis] && point[axis] < kHigh[axis])) return false;
      const float position = (point[axis] - (is_of_range ? kLow[axis] : 0.0f)) / kSize[axis];
      (*cell)[axis] = static_cast<int>(is_floor ? std::floor(position) : std::nearbyint(position));
      if (is_of_range && (*cell)[axis] >= std::lround((kHigh[axis] - kLow[axis]) / kSize[axis])) return false;
    }
    return true;
  }
  double Center(const Cell& cell, size_t axis) const {
    return (cell[axis] + (is_floor ? 0.5 : 0.0)) * kSize[axis] + (is_of_range ? kLow[axis] : 0.0);
  }
};

// Returns points within the range and around it. Many are close to another point.
std::vector<Point> RandomScan(size_t num_points, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> unit(-1, 1);
  std::vector<Point> points;
  for (size_t i = 0; i < num_points; ++i) {
    points.push_back({3.2f * unit(random), 2.2f * unit(random), 1 + 2.1f * unit(random), 5 * unit(random)});
    if (i % 2 == 1) {
      for (size_t axis = 0; axis < 3; ++axis) points[i][axis] = points[i / 2][axis] + 0.05f * unit(random);
    }
  }
  return points;
}

// Returns the points of each cell, in the cloud's order.
std::map<Cell, std::vector<size_t>> Groups(const Grid& grid, const std::vector<Point>& points) {
  std::map<Cell, std::vector<size_t>> groups;
  for (size_t i = 0; i < points.size(); ++i) {
    if (Cell cell; grid.Find(points[i], &cell)) groups[cell].push_back(i);
  }
  return groups;
}

class PillarsTest : public ::testing::TestWithParam<support::Device> {
 protected:
  void SetUp() override { SKIP_WITHOUT(GetParam()); }

  // Runs a network with a node "result" on points. A point with a voxel must get the row that row_of(points, cell,
  // indices of the cell's points, index of the point) returns, every other point 0.
  void Expect(
      const Grid& grid, const std::string& nodes, size_t channels,
      const std::function<Row(const std::vector<Point>&, const Cell&, const std::vector<size_t>&, size_t)>& row_of) {
    TestModel model;
    model.graph = absl::StrCat(grid.Text(), nodes,
                               "nodes { name: \"labels\" inputs: \"result\" argmax {} }\noutputs { kind: KIND_LABELS "
                               "node: \"labels\" } outputs { kind: KIND_SCORES node: \"result\" }");
    std::vector<ScoredCloud> samples;
    for (const size_t num_points : {size_t{90}, size_t{0}, size_t{400}, size_t{1}}) {
      const std::vector<Point> points = RandomScan(num_points, 7 + static_cast<uint32_t>(num_points));
      ScoredCloud sample{.cloud = *PointCloud::FromFloats({"x", "y", "z", "f"},
                                                          points.empty() ? nullptr : points[0].data(), points.size()),
                         .scores = std::vector<double>(points.size() * channels)};
      for (const auto& [cell, group] : Groups(grid, points)) {
        for (const size_t point : group) {
          const Row row = row_of(points, cell, group, point);
          ASSERT_EQ(row.size(), channels);
          std::copy(row.begin(), row.end(), sample.scores.begin() + static_cast<int64_t>(point * channels));
        }
      }
      samples.push_back(std::move(sample));
    }
    ExpectScores(GetParam(), model, samples);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, PillarsTest, support::AllDevices(), support::DeviceName);

TEST_P(PillarsTest, OffsetsFromTheMean) {
  for (const size_t max_points : {0, 1, 3}) {
    for (const bool is_of_range : {false, true}) {
      const std::string limit = max_points > 0 ? absl::StrCat(" max_points: ", max_points) : "";
      Expect({.is_of_range = is_of_range},
             absl::StrCat("nodes { name: \"result\" inputs: \"voxels\" point_offsets { reference: REFERENCE_MEAN",
                          limit, " } }"),
             3, [=](const std::vector<Point>& points, const Cell&, const std::vector<size_t>& group, size_t point) {
               const size_t count = max_points == 0 ? group.size() : std::min(max_points, group.size());
               Row row;
               for (size_t axis = 0; axis < 3; ++axis) {
                 double sum = 0;
                 for (size_t i = 0; i < count; ++i) sum += points[group[i]][axis];
                 row.push_back(points[point][axis] - sum / static_cast<double>(count));
               }
               return row;
             });
    }
  }
}

TEST_P(PillarsTest, OffsetsFromTheCentre) {
  for (const bool is_of_range : {false, true}) {
    for (const bool is_floor : {false, true}) {
      const Grid grid{.is_of_range = is_of_range, .is_floor = is_floor};
      Expect(grid, "nodes { name: \"result\" inputs: \"voxels\" point_offsets { reference: REFERENCE_CENTER } }", 3,
             [grid](const std::vector<Point>& points, const Cell& cell, const std::vector<size_t>&, size_t point) {
               Row row;
               for (size_t axis = 0; axis < 3; ++axis) row.push_back(points[point][axis] - grid.Center(cell, axis));
               return row;
             });
    }
  }
}

// A point gets the row of its voxel, which reduces only the first max_points points of the voxel.
TEST_P(PillarsTest, TheFirstPointsAlone) {
  for (const std::string reduce : {"MAX", "AVERAGE", "SUM"}) {
    for (const size_t max_points : {1, 2, 5}) {
      const std::string nodes = absl::StrCat(
          "nodes { name: \"features\" inputs: \"voxels\" point_features {} }\n"
          "nodes { name: \"pillars\" inputs: [\"features\", \"voxels\"] point_to_voxel { reduce: REDUCE_",
          reduce, " max_points: ", max_points,
          " } }\nnodes { name: \"result\" inputs: [\"pillars\", \"voxels\"] voxel_to_point {} }\n");
      Expect({}, nodes, 4,
             [=](const std::vector<Point>& points, const Cell&, const std::vector<size_t>& group, size_t) {
               const size_t count = std::min(max_points, group.size());
               Row row;
               for (size_t c = 0; c < 4; ++c) {
                 double sum = 0, largest = points[group[0]][c];
                 for (size_t i = 0; i < count; ++i) {
                   sum += points[group[i]][c];
                   largest = std::max(largest, double{points[group[i]][c]});
                 }
                 row.push_back(reduce == "MAX" ? largest : reduce == "SUM" ? sum : sum / static_cast<double>(count));
               }
               return row;
             });
    }
  }
}

// Here the row of an empty slot is tanh of the voxel's first point. It exceeds values that are below 0.
TEST_P(PillarsTest, EmptySlotsCountWhereThereAreSome) {
  for (const size_t max_points : {1, 2, 5, 1000}) {
    const std::string nodes = absl::StrCat(
        "nodes { name: \"features\" inputs: \"voxels\" point_features {} }\n"
        "nodes { name: \"empty\" inputs: \"voxels\" activation { function: FUNCTION_TANH } }\n"
        "nodes { name: \"pillars\" inputs: [\"features\", \"empty\", \"voxels\"] point_to_voxel { reduce: REDUCE_MAX "
        "max_points: ",
        max_points,
        " has_empty_slots: true } }\nnodes { name: \"result\" inputs: [\"pillars\", \"voxels\"] voxel_to_point {} }\n");
    Expect({}, nodes, 4, [=](const std::vector<Point>& points, const Cell&, const std::vector<size_t>& group, size_t) {
      const size_t count = std::min(max_points, group.size());
      Row row;
      for (size_t c = 0; c < 4; ++c) {
        double largest = points[group[0]][c];
        for (size_t i = 0; i < count; ++i) largest = std::max(largest, double{points[group[i]][c]});
        if (group.size() < max_points) largest = std::max(largest, std::tanh(double{points[group[0]][c]}));
        row.push_back(largest);
      }
      return row;
    });
  }
}

}  // namespace
}  // namespace voxserve::pillars_test
