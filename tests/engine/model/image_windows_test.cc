// Tests the windows of sites on which images depend (engine/model/image_windows.h), by following what each position
// reads through random chains of convolutions.

#include "engine/model/image_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <vector>

namespace voxserve::image_windows_test {
namespace {

using kernels::Conv2dGeometry;

// Dependence lists the positions of the source that one position of an axis depends on.
// reads_outside: the position depends on what lies outside of the image.
// weights: a hash of the transposed convolutions' kernel cells that are read on the way. Where no sites are, the value
// of a position depends on these cells alone.
struct Dependence {
  std::set<int32_t> source;
  bool reads_outside = false;
  uint64_t weights = 0;

  void Include(const Dependence& other) {
    source.insert(other.source.begin(), other.source.end());
    reads_outside |= other.reads_outside;
  }
};

// Returns what the outputs on axis 0 depend on.
std::vector<Dependence> After(const std::vector<Dependence>& in, const Conv2dGeometry& geometry) {
  const auto in_size = static_cast<int64_t>(in.size());
  std::vector<Dependence> out(static_cast<size_t>(std::max<int64_t>(0, geometry.OutSize(0, in_size))));
  for (size_t y = 0; y < out.size(); ++y) {
    for (int32_t cell = 0; cell < geometry.kernel_size[0]; ++cell) {
      int64_t at = static_cast<int64_t>(y) * geometry.stride[0] - geometry.padding[0] + cell * geometry.dilation[0];
      if (geometry.is_transposed) {
        const int64_t scaled = static_cast<int64_t>(y) + geometry.padding[0] - cell;
        if (scaled % geometry.stride[0] != 0) continue;
        at = scaled / geometry.stride[0];
      }
      if (at < 0 || at >= in_size) {
        out[y].reads_outside = true;
      } else {
        const Dependence& read = in[static_cast<size_t>(at)];
        out[y].Include(read);
        const auto own = static_cast<uint64_t>(geometry.is_transposed ? cell + 1 : 0);
        out[y].weights = out[y].weights * 31 + read.weights * 1000003 + own;
      }
    }
  }
  return out;
}

std::vector<Dependence> Source(int32_t size) {
  std::vector<Dependence> source(static_cast<size_t>(size));
  for (int32_t i = 0; i < size; ++i) source[static_cast<size_t>(i)].source = {i};
  return source;
}

// Expects that the window of each position has all that the position depends on, and leaves the source if the position
// reads what lies outside of an image.
void ExpectCovers(const kernels::SourceWindow& window, const std::vector<Dependence>& dependences, int32_t size) {
  for (int32_t y = 0; y < static_cast<int32_t>(dependences.size()); ++y) {
    const Dependence& dependence = dependences[static_cast<size_t>(y)];
    const int32_t first = y * window.step - window.before, last = y * window.step + window.after;
    if (!dependence.source.empty()) {
      ASSERT_LE(first, *dependence.source.begin()) << y;
      ASSERT_GE(last, *dependence.source.rbegin()) << y;
    }
    ASSERT_TRUE(!dependence.reads_outside || first < 0 || last >= size) << y;
  }
}

// Expects that positions a period apart that depend on no border have the same weights.
void ExpectRepeats(int32_t period, const std::vector<Dependence>& dependences) {
  for (size_t y = 0; y + static_cast<size_t>(period) < dependences.size(); ++y) {
    const Dependence &one = dependences[y], &next = dependences[y + static_cast<size_t>(period)];
    if (one.reads_outside || next.reads_outside) continue;
    ASSERT_EQ(one.weights, next.weights) << y;
  }
}

TEST(ImageWindowsTest, CoverWhatChainsOfConvolutionsRead) {
  std::mt19937 random(5);
  const auto any = [&](int32_t from, int32_t to) { return std::uniform_int_distribution<int32_t>(from, to)(random); };
  int num_known = 0, num_periods = 0;
  for (int round = 0; round < 400; ++round) {
    const int32_t size = any(20, 90);
    std::vector<Dependence> dependences = Source(size);
    std::optional<ImageWindows> windows = ImageWindows{.source = 0, .axes = {}, .is_source = true};
    for (int depth = any(1, 6); depth > 0 && windows && !dependences.empty(); --depth) {
      Conv2dGeometry geometry;
      if (any(0, 3) == 0) {
        const int32_t stride = any(1, 2) * any(1, 2);
        geometry = {.kernel_size = {stride, 1}, .stride = {stride, 1}, .is_transposed = true};
      } else {
        geometry = {.kernel_size = {any(1, 5), 1},
                    .stride = {any(1, 2), 1},
                    .padding = {any(0, 3), 0},
                    .dilation = {any(1, 2), 1}};
      }
      windows = windows->After(geometry);
      dependences = After(dependences, geometry);
      if (!windows) break;
      ++num_known;
      EXPECT_EQ(windows->axes[1], AxisWindow()) << "nothing happens on the other axis";
      ExpectCovers(windows->axes[0].source, dependences, size);
      ExpectRepeats(windows->axes[0].period, dependences);
      num_periods += windows->axes[0].period > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(num_known, 500);
  EXPECT_GT(num_periods, 20);
}

TEST(ImageWindowsTest, AreNoLargerThanWhatConvolutionsRead) {
  constexpr Conv2dGeometry kSame = {.kernel_size = {3, 3}, .padding = {1, 1}};
  constexpr Conv2dGeometry kHalving = {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
  constexpr Conv2dGeometry kDoubling = {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};
  std::optional<ImageWindows> windows = ImageWindows{.source = 0, .axes = {}, .is_source = true};
  const auto expect = [&](kernels::SourceWindow source, int32_t period) {
    ASSERT_TRUE(windows);
    EXPECT_FALSE(windows->is_source);
    EXPECT_EQ(windows->axes[0], (AxisWindow{.source = source, .period = period}));
    EXPECT_EQ(windows->axes[1], windows->axes[0]);
  };
  windows = windows->After(kSame);
  expect({1, 1, 1}, 1);
  windows = windows->After(kHalving);
  expect({2, 2, 2}, 1);
  const ImageWindows halved = *windows;
  windows = windows->After(kSame);
  expect({2, 4, 4}, 1);
  windows = windows->With(halved);
  expect({2, 4, 4}, 1);
  windows = windows->After(kDoubling);
  expect({1, 5, 4}, 2);
  windows = windows->After(kHalving);
  expect({2, 6, 5}, 1);
}

TEST(ImageWindowsTest, AreSmallUpToAnEighthOfTheImage) {
  const ImageWindows windows{.source = 0, .axes = {AxisWindow{.source = {1, 6, 4}}, AxisWindow{.source = {1, 3, 2}}}};
  EXPECT_TRUE(windows.AreSmallIn({.size = {80, 40, 1, 1}}));
  EXPECT_FALSE(windows.AreSmallIn({.size = {79, 40, 1, 1}}));
  EXPECT_FALSE(windows.AreSmallIn({.size = {80, 39, 1, 1}}));
}

TEST(ImageWindowsTest, AreUnknownWhereTheyDoNotFitBoxes) {
  const ImageWindows source{.source = 0, .axes = {}, .is_source = true};
  const auto transposed = [](int32_t kernel_size, int32_t stride) {
    return Conv2dGeometry{.kernel_size = {kernel_size, kernel_size}, .stride = {stride, stride}, .is_transposed = true};
  };
  EXPECT_FALSE(source.After(transposed(2, 2))) << "half a step";
  const std::optional<ImageWindows> coarse = source.After({.kernel_size = {8, 8}, .stride = {8, 8}});
  ASSERT_TRUE(coarse);
  EXPECT_TRUE(coarse->After(transposed(4, 4)));
  EXPECT_FALSE(coarse->After(transposed(8, 8))) << "boxes do not begin at multiples of 8";
  EXPECT_FALSE(coarse->After(transposed(3, 2))) << "outputs of several inputs";
  EXPECT_FALSE(coarse->After(transposed(3, 3))) << "no whole step";
  EXPECT_FALSE(coarse->With(source)) << "another step";
  EXPECT_FALSE(source.With({.source = 1, .axes = {}})) << "other sites";
  EXPECT_FALSE(coarse->After({.kernel_size = {7, 7}, .padding = {1 << 22, 0}})) << "too far";
}

}  // namespace
}  // namespace voxserve::image_windows_test
