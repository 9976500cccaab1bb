// Tests where the compiler places buffers in a program's block of memory: buffers that are alive at the same time must
// not overlap, and the block must be as small as it can be.

#include "engine/compiler/buffer_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "engine/compiler/compiler.h"
#include "engine/runtime/aligned_bytes.h"
#include "tests/support/minkunet.h"

namespace voxserve::buffer_placement_test {
namespace {

constexpr int64_t kUnit = kArrayAlignment;  // bytes of a row in these tests

// Returns a buffer with this many rows of kUnit bytes for each sample.
Buffer OfRows(int64_t rows, int first_step, int last_step) {
  return {.level = kSampleLevel,
          .rows_per_sample = rows,
          .dtype = DType::kFloat32,
          .channels = 64,
          .pitch = 64,
          .first_step = first_step,
          .last_step = last_step};
}

Program WithBuffers(std::vector<Buffer> buffers) {
  Program program;
  program.buffers = std::move(buffers);
  int end_step = 0;
  for (const Buffer& buffer : program.buffers) end_step = std::max(end_step, buffer.last_step + 1);
  program.segments = {{.first_step = 0, .end_step = end_step}};
  return program;
}

BufferPlaces Place(const Program& program, int64_t num_samples = 1) {
  return PlaceBuffers(program, program.segments.front(), {}, num_samples, /*num_points=*/0);
}

int64_t BytesOf(const Buffer& buffer, const std::vector<int64_t>& num_sites) {
  return AlignedBytes(buffer.NumRows(num_sites, 1, 124668) * buffer.pitch * SizeOf(buffer.dtype));
}

bool AreBothAlive(const Buffer& a, const Buffer& b) {
  return std::max(a.first_step, b.first_step) <= std::min(a.last_step, b.last_step);
}

// Returns the largest sum of the bytes of the buffers that are alive in one step.
int64_t MostAlive(const Program& program, const std::vector<int64_t>& num_sites = {}) {
  int64_t most = 0;
  for (int step = 0; step < program.segments.front().end_step; ++step) {
    int64_t alive = 0;
    for (const Buffer& buffer : program.buffers) {
      if (buffer.first_step <= step && step <= buffer.last_step) alive += BytesOf(buffer, num_sites);
    }
    most = std::max(most, alive);
  }
  return most;
}

void ExpectApart(const Program& program, const BufferPlaces& places, const std::vector<int64_t>& num_sites = {}) {
  ASSERT_EQ(places.buffers.size(), places.begin.size());
  for (size_t i = 0; i < places.buffers.size(); ++i) {
    const Buffer& a = program.buffers[places.buffers[i]];
    const int64_t end = places.begin[i] + BytesOf(a, num_sites);
    EXPECT_GE(places.begin[i], 0);
    EXPECT_EQ(places.begin[i] % kArrayAlignment, 0);
    EXPECT_LE(end, places.bytes);
    for (size_t j = 0; j < i; ++j) {
      const Buffer& b = program.buffers[places.buffers[j]];
      if (!AreBothAlive(a, b)) continue;
      EXPECT_TRUE(end <= places.begin[j] || places.begin[j] + BytesOf(b, num_sites) <= places.begin[i])
          << places.buffers[i] << " and " << places.buffers[j];
    }
  }
}

TEST(BufferPlacementTest, OfNoBuffersIsEmpty) {
  const BufferPlaces places = Place(WithBuffers({}));
  EXPECT_EQ(places.bytes, 0);
  EXPECT_TRUE(places.buffers.empty());
}

TEST(BufferPlacementTest, StepsThatFollowEachOtherShareMemory) {
  const Program program = WithBuffers({OfRows(4, 0, 1), OfRows(4, 1, 2), OfRows(4, 2, 3), OfRows(4, 3, 4)});
  const BufferPlaces places = Place(program);
  EXPECT_EQ(places.bytes, 8 * kUnit);
  ExpectApart(program, places);
}

TEST(BufferPlacementTest, ABufferThatIsReadInTheStepThatWritesAnotherStaysApart) {
  const Program program = WithBuffers({OfRows(1, 0, 3), OfRows(1, 3, 5)});
  EXPECT_EQ(Place(program).bytes, 2 * kUnit);
}

// The concatenation of each level lives from its encoder to its decoder, with small buffers between. If buffers were
// placed in the order of their first use, small ones would lie between large ones and leave gaps that fit nothing.
TEST(BufferPlacementTest, MinkUNetTakesNoMoreThanWhatIsAliveAtOnce) {
  const absl::StatusOr<Graph> graph = support::LoadNetwork(support::MinkUNet({}));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Program program = Compile(*graph, Plan(), {});
  const std::vector<int64_t> num_sites = {91852, 60236, 31883, 14454, 5908};  // scan semantickitti-00/000000
  const BufferPlaces places = PlaceBuffers(program, program.segments.front(), num_sites, 1, /*num_points=*/124668);
  ExpectApart(program, places, num_sites);
  EXPECT_EQ(places.bytes, MostAlive(program, num_sites));
}

TEST(BufferPlacementTest, GrowsWithSamples) {
  const Program program = WithBuffers({OfRows(3, 0, 1), OfRows(5, 1, 2)});
  EXPECT_EQ(Place(program, 7).bytes, 7 * Place(program).bytes);
}

TEST(BufferPlacementTest, ASegmentPlacesWhatItsStepsTouchFirst) {
  Program program = WithBuffers({OfRows(9, 0, 3), OfRows(1, 2, 3), OfRows(2, 3, 3), OfRows(9, -1, -1)});
  program.segments = {{.first_step = 0, .end_step = 2}, {.first_step = 2, .end_step = 4}};
  const BufferPlaces places = PlaceBuffers(program, program.segments[1], {}, 1, 0);
  EXPECT_EQ(places.buffers, (std::vector<size_t>{2, 1}));
  EXPECT_EQ(places.bytes, 3 * kUnit);
  std::vector<char> block(static_cast<size_t>(places.bytes));
  std::vector<char*> data(program.buffers.size());
  places.SetData(block.data(), data);
  EXPECT_EQ(data, (std::vector<char*>{nullptr, block.data() + 2 * kUnit, block.data(), nullptr}));
}

TEST(BufferPlacementTest, NothingThatIsAliveTogetherOverlaps) {
  std::mt19937 random(1);
  const auto below = [&](int end) { return std::uniform_int_distribution<int>(0, end - 1)(random); };
  for (int run = 0; run < 200; ++run) {
    SCOPED_TRACE(run);
    std::vector<Buffer> buffers;
    for (int i = below(40); i >= 0; --i) {
      const int first_step = below(30);
      buffers.push_back(OfRows(below(20), first_step, first_step + below(10)));
    }
    const Program program = WithBuffers(std::move(buffers));
    const BufferPlaces places = Place(program);
    EXPECT_EQ(places.buffers.size(), program.buffers.size());
    EXPECT_GE(places.bytes, MostAlive(program));
    ExpectApart(program, places);
  }
}

}  // namespace
}  // namespace voxserve::buffer_placement_test
