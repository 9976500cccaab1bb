// Tests the lists of boxes in which images depend on sites (kernels/image/sites/active_boxes.h) against their
// definition, and that convolutions by these lists have the bytes of whole images.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/morton_key.h"
#include "kernels/core/device_code.h"
#include "kernels/image/conv2d.h"
#include "kernels/image/sites/active_boxes.h"
#include "tests/kernels/image/conv2d_testing.h"

namespace voxserve::kernels::active_boxes_cuda_test {
namespace {

constexpr Conv2dGeometry kSame = {.kernel_size = {3, 3}, .padding = {1, 1}};
constexpr Conv2dGeometry kHalving = {.kernel_size = {3, 3}, .stride = {2, 2}, .padding = {1, 1}};
constexpr Conv2dGeometry kDoubling = {.kernel_size = {2, 2}, .stride = {2, 2}, .is_transposed = true};
constexpr Conv2dGeometry kQuartering = {.kernel_size = {3, 3}, .stride = {4, 4}, .padding = {1, 1}};
constexpr Conv2dGeometry kQuadrupling = {.kernel_size = {4, 4}, .stride = {4, 4}, .is_transposed = true};

std::array<SourceWindow, 2> Both(SourceWindow window) { return {window, window}; }

struct Site {
  int32_t image, row, column;
};

class ActiveBoxesTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT(Device::kCuda);
    if constexpr (kHasCuda) {
      if (cuda::CodeVersion() != cuda::kWarpGroupCode) GTEST_SKIP() << "This GPU computes no boxes";
      num_sms_ = cuda::NumSms();
    }
  }

  // Puts sites into images of rows x columns, some beside each other and some alone. The first image has none.
  void MakeSites(int32_t num_images, int32_t rows, int32_t columns, int num_clusters, Random& random) {
    num_images_ = num_images;
    rows_ = rows;
    columns_ = columns;
    sites_.clear();
    std::set<int64_t> taken;
    const auto any = [&](int32_t from, int32_t to) {
      return std::uniform_int_distribution<int32_t>(from, to)(random.engine());
    };
    for (int32_t image = 1; image < num_images; ++image) {
      for (int cluster = 0; cluster < num_clusters; ++cluster) {
        const int32_t row = any(0, rows - 1);
        const int32_t column = any(0, columns - 1);
        const int32_t size = any(1, 20);
        for (int32_t r = row; r < std::min(row + size, rows); ++r) {
          for (int32_t c = column; c < std::min(column + size, columns); ++c) {
            if (!random.Chance(0.5) || !taken.insert((int64_t{image} * rows + r) * columns + c).second) continue;
            sites_.push_back({image, r, c});
          }
        }
      }
    }
  }

  // Returns an image of the sites: random values at sites, 0 elsewhere.
  Matrix SourceImage(int32_t channels, DType dtype, Random& random) const {
    Matrix image(int64_t{num_images_} * rows_ * columns_, channels, {}, nullptr);
    std::fill(image.values.begin(), image.values.end(), 0.0f);
    for (const Site& site : sites_) {
      const int64_t row = (int64_t{site.image} * rows_ + site.row) * columns_ + site.column;
      const std::vector<float> values = random.Floats(channels, dtype);
      for (int32_t c = 0; c < channels; ++c) image.at(row, c) = values[static_cast<size_t>(c)];
    }
    return image;
  }

  // Writes the lists of the layout into memory_. depth: the cells of a position. Sites are in the first ones in turns.
  void List(const ActiveBoxLayout& layout, int32_t depth = 1) {
    const SiteGrid grid = SiteGrid::FromAbove({columns_, rows_, depth, 1});
    const CoordinateKey key(3);
    std::vector<uint64_t> keys;
    for (const Site& site : sites_) {
      const auto cell = static_cast<int32_t>(keys.size()) % depth;
      keys.push_back(ToMortonKey(key, key.Pack(site.image, {site.column, site.row, cell, 0})));
    }
    const auto num_sites = static_cast<int64_t>(keys.size());
    keys_ = std::make_unique<DeviceArray<uint64_t>>(Device::kCuda, keys);
    num_sites_ = std::make_unique<DeviceArray<int64_t>>(Device::kCuda, std::vector<int64_t>{num_sites});
    memory_ = std::make_unique<DeviceArray<int32_t>>(
        Device::kCuda, std::vector<int32_t>(static_cast<size_t>(layout.IntsAnImage() * num_images_), 77));
    params_ = {.layout = layout,
               .grid = grid,
               .depth = depth,
               .num_samples = num_images_,
               .keys = keys_->data(),
               .num_sites = num_sites + 100,
               .device_num_sites = num_sites_->data(),
               .memory = memory_->data()};
    ListAgain();
  }

  void ListAgain() const {
    if constexpr (kHasCuda) {
      ExpectCudaSuccess(cuda::ListActiveBoxes(params_, TestStream()));
      Synchronize();
    }
  }

  ActiveBoxList ListOf(const ActiveBoxLayout& layout, int number) {
    return layout.ListOf(number, num_images_, num_sms_, memory_->data());
  }

  // Expects that every box is listed once, and as what it is. Returns the number of quiet ones.
  int64_t ExpectList(const ActiveBoxLayout& layout, int number) {
    const std::vector<int32_t> memory = memory_->ToHost();
    const ListedConv& conv = layout.conv(number);
    const ImageBox box = ListOf(layout, number).box;
    const auto header = memory.begin() + layout.HeaderBegin(number, num_images_);
    const auto boxes = memory.begin() + layout.ListBegin(number, num_images_);
    const int64_t num_boxes = num_images_ * box.NumIn(conv.out_rows, conv.out_columns);
    const int64_t active = header[ActiveBoxList::kActive], quiet = header[ActiveBoxList::kQuiet];
    EXPECT_EQ(active + quiet, num_boxes);
    std::set<int32_t> listed;
    for (int64_t i = 0; i < active; ++i) {
      EXPECT_TRUE(IsActive(conv, box, boxes[1 + i])) << boxes[1 + i];
      listed.insert(boxes[1 + i]);
    }
    for (int64_t i = 0; i < quiet; ++i) {
      const int32_t each = i == 0 ? boxes[0] : boxes[num_boxes + 1 - i];
      EXPECT_FALSE(IsActive(conv, box, each)) << each;
      listed.insert(each);
    }
    EXPECT_EQ(static_cast<int64_t>(listed.size()), num_boxes);
    return quiet;
  }

  // Runs a convolution for whole images, by its list, and by its list with the residual in the memory of the output;
  // expects equal bytes. Returns the output.
  Matrix ExpectSameBytes(const Matrix& in, const Shape& shape, const ActiveBoxList& active, DType dtype,
                         DType out_dtype, const Matrix* residual, Random& random) {
    const DeviceMatrix device_in(Device::kCuda, dtype, in);
    std::vector<float> weights;
    if constexpr (kHasCuda) {
      weights = cuda::PackConv2dWeights(shape.geometry, shape.in_channels, shape.out_channels, dtype,
                                        random.Floats(shape.NumWeights(), dtype).data());
    }
    const DeviceValues device_weights(Device::kCuda, dtype, weights);
    const DeviceArray<float> bias(Device::kCuda, random.Floats(shape.out_channels));
    const DeviceMatrix device_residual(Device::kCuda, dtype,
                                       residual == nullptr ? Matrix(1, 8, {}, nullptr) : *residual);
    const auto run = [&](const ActiveBoxList& list, bool is_in_place) {
      const DeviceMatrix out(Device::kCuda, out_dtype,
                             is_in_place ? *residual : Matrix(shape.NumOut(), shape.out_channels, {}, nullptr));
      Epilogue epilogue{.bias = bias.data(), .activation = ActivationFunction::kRelu};
      if (residual != nullptr) epilogue.residual = is_in_place ? out.View() : device_residual.View();
      if constexpr (kHasCuda) {
        ExpectCudaSuccess(cuda::Conv2d({.geometry = shape.geometry,
                                        .num_images = shape.num_images,
                                        .in_rows = shape.in_rows,
                                        .in_columns = shape.in_columns,
                                        .in = device_in.View(),
                                        .weights = device_weights.data(),
                                        .out = out.View(),
                                        .epilogue = epilogue,
                                        .active = list},
                                       TestStream()));
        Synchronize();
      }
      return out.ToHost();
    };
    const Matrix whole = run({}, /*is_in_place=*/false);
    const auto expect_whole = [&](const Matrix& by_list) {
      int64_t num_different = 0;
      for (size_t i = 0; i < whole.values.size(); ++i) num_different += whole.values[i] != by_list.values[i] ? 1 : 0;
      EXPECT_EQ(num_different, 0) << Described(shape);
    };
    expect_whole(run(active, /*is_in_place=*/false));
    if (residual != nullptr && out_dtype == dtype) {
      ListAgain();  // a list serves one call
      expect_whole(run(active, /*is_in_place=*/true));
    }
    return whole;
  }

  int32_t num_images_ = 0, rows_ = 0, columns_ = 0;
  int num_sms_ = 0;
  std::vector<Site> sites_;
  std::unique_ptr<DeviceArray<int32_t>> memory_;

 private:
  std::unique_ptr<DeviceArray<uint64_t>> keys_;
  std::unique_ptr<DeviceArray<int64_t>> num_sites_;
  ListActiveBoxesParams params_{.layout = ActiveBoxLayout(0, 0)};

  bool IsActive(const ListedConv& conv, const ImageBox& box, int32_t number) const {
    const int32_t boxes_a_row = (conv.out_columns - 1) / box.columns + 1;
    const auto an_image = static_cast<int32_t>(box.NumIn(conv.out_rows, conv.out_columns));
    const int32_t image = number / an_image, of_image = number % an_image;
    const int32_t row = of_image / boxes_a_row * box.rows, column = of_image % boxes_a_row * box.columns;
    if (row + box.rows > conv.out_rows || column + box.columns > conv.out_columns) return true;
    const auto first = [](const SourceWindow& w, int32_t at) { return at * w.step - w.before; };
    const auto last = [](const SourceWindow& w, int32_t at) { return at * w.step + w.after; };
    const int32_t first_row = first(conv.windows[0], row), last_row = last(conv.windows[0], row + box.rows - 1);
    const int32_t first_column = first(conv.windows[1], column),
                  last_column = last(conv.windows[1], column + box.columns - 1);
    if (!conv.reads_source && (first_row < 0 || last_row >= rows_ || first_column < 0 || last_column >= columns_)) {
      return true;
    }
    return std::any_of(sites_.begin(), sites_.end(), [&](const Site& site) {
      return site.image == image && site.row >= first_row && site.row <= last_row && site.column >= first_column &&
             site.column <= last_column;
    });
  }
};

// Convolutions, one that halves the image, a transposed one, and what follows from all of them.
TEST_F(ActiveBoxesTest, AChainOfConvolutionsHasTheBytesOfWholeImages) {
  Random random(41);
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    MakeSites(/*num_images=*/4, 301, 259, /*num_clusters=*/4, random);
    ActiveBoxLayout layout(rows_, columns_);
    const int32_t half_rows = (rows_ + 1) / 2, half_columns = (columns_ + 1) / 2;
    layout.Add({rows_, columns_, 128, Both({1, 1, 1}), /*reads_source=*/true});
    layout.Add({rows_, columns_, 128, Both({1, 2, 2})});
    layout.Add({half_rows, half_columns, 64, Both({2, 3, 3})});
    layout.Add({2 * half_rows, 2 * half_columns, 200, Both({1, 5, 4})});
    List(layout);
    int64_t num_quiet = 0;
    for (int i = 0; i < layout.num_convs(); ++i) num_quiet += ExpectList(layout, i);
    EXPECT_GT(num_quiet, 1000);
    Matrix first = ExpectSameBytes(SourceImage(64, dtype, random), {kSame, num_images_, rows_, columns_, 64, 128},
                                   ListOf(layout, 0), dtype, dtype, nullptr, random);
    const Matrix second = ExpectSameBytes(first, {kSame, num_images_, rows_, columns_, 128, 128}, ListOf(layout, 1),
                                          dtype, dtype, &first, random);
    const Matrix halved = ExpectSameBytes(second, {kHalving, num_images_, rows_, columns_, 128, 64}, ListOf(layout, 2),
                                          dtype, dtype, nullptr, random);
    const Matrix doubled = ExpectSameBytes(halved, {kDoubling, num_images_, half_rows, half_columns, 64, 64}, {}, dtype,
                                           dtype, nullptr, random);
    ExpectSameBytes(doubled, {kSame, num_images_, 2 * half_rows, 2 * half_columns, 64, 200}, ListOf(layout, 3), dtype,
                    DType::kFloat32, nullptr, random);
  }
}

TEST_F(ActiveBoxesTest, ImagesWithoutSitesAndImagesFullOfThem) {
  Random random(42);
  for (const bool is_full : {false, true}) {
    MakeSites(/*num_images=*/2, 288, 400, /*num_clusters=*/0, random);
    for (int32_t image = 0; is_full && image < 2; ++image) {
      for (int32_t row = 0; row < rows_; row += 5) {
        for (int32_t column = 0; column < columns_; column += 5) sites_.push_back({image, row, column});
      }
    }
    ActiveBoxLayout layout(rows_, columns_);
    layout.Add({rows_, columns_, 64, Both({1, 1, 1}), /*reads_source=*/true});
    layout.Add({rows_, columns_, 384, Both({1, 2, 2})});
    layout.Add({rows_, columns_, 320, Both({1, 2, 2})});  // a block's next tile has other channels
    List(layout);
    EXPECT_EQ(ExpectList(layout, 0), is_full ? 0 : 2 * (288 / 16) * (400 / 16));
    ExpectList(layout, 1);
    const Matrix first =
        ExpectSameBytes(SourceImage(64, DType::kFloat16, random), {kSame, num_images_, rows_, columns_, 64, 64},
                        ListOf(layout, 0), DType::kFloat16, DType::kFloat16, nullptr, random);
    for (int number = 1; number < layout.num_convs(); ++number) {
      ExpectSameBytes(first, {kSame, num_images_, rows_, columns_, 64, layout.conv(number).out_channels},
                      ListOf(layout, number), DType::kFloat16, DType::kFloat16, nullptr, random);
    }
  }
}

// Behind a transposed convolution with stride 4, numbers repeat every fourth row and column.
TEST_F(ActiveBoxesTest, APeriodOfFourPositions) {
  Random random(44);
  MakeSites(/*num_images=*/4, 301, 259, /*num_clusters=*/3, random);
  const int32_t quarter_rows = (rows_ + 3) / 4, quarter_columns = (columns_ + 3) / 4;
  ActiveBoxLayout layout(rows_, columns_);
  for (const int32_t out_channels : {64, 128}) {
    layout.Add({4 * quarter_rows, 4 * quarter_columns, out_channels, Both({1, 5, 2})});
  }
  List(layout);
  const Matrix quartered =
      ExpectSameBytes(SourceImage(64, DType::kFloat16, random), {kQuartering, num_images_, rows_, columns_, 64, 64}, {},
                      DType::kFloat16, DType::kFloat16, nullptr, random);
  const Matrix quadrupled =
      ExpectSameBytes(quartered, {kQuadrupling, num_images_, quarter_rows, quarter_columns, 64, 64}, {},
                      DType::kFloat16, DType::kFloat16, nullptr, random);
  for (int number = 0; number < layout.num_convs(); ++number) {
    EXPECT_GT(ExpectList(layout, number), 100);
    ExpectSameBytes(quadrupled,
                    {kSame, num_images_, 4 * quarter_rows, 4 * quarter_columns, 64, layout.conv(number).out_channels},
                    ListOf(layout, number), DType::kFloat16, DType::kFloat16, nullptr, random);
  }
}

// Sites of several cells of a position. The bits and headers that are cleared first are an odd number of words.
TEST_F(ActiveBoxesTest, PositionsOfSeveralCells) {
  Random random(45);
  MakeSites(/*num_images=*/3, 301, 259, /*num_clusters=*/4, random);
  ActiveBoxLayout layout(rows_, columns_);
  layout.Add({rows_, columns_, 64, Both({1, 1, 1}), /*reads_source=*/true});
  layout.Add({rows_, columns_, 128, Both({1, 2, 2})});
  EXPECT_EQ(layout.ClearedInts(num_images_) % 2, 1);
  for (const int32_t depth : {2, 5}) {
    List(layout, depth);
    EXPECT_GT(ExpectList(layout, 0), 100);
    EXPECT_GT(ExpectList(layout, 1), 100);
  }
}

// Convolutions that the kernel of boxes does not serve are computed whole.
TEST_F(ActiveBoxesTest, OtherConvolutionsAreComputedWhole) {
  Random random(43);
  MakeSites(/*num_images=*/2, 300, 300, /*num_clusters=*/3, random);
  ActiveBoxLayout layout(rows_, columns_);
  layout.Add({rows_, columns_, 64, {SourceWindow{1, 1, 1}, SourceWindow{1, 1, 1}}, /*reads_source=*/true});
  List(layout);
  ExpectSameBytes(SourceImage(48, DType::kFloat16, random), {kSame, num_images_, rows_, columns_, 48, 64},
                  ListOf(layout, 0), DType::kFloat16, DType::kFloat16, nullptr, random);
  ExpectSameBytes(SourceImage(64, DType::kFloat16, random), {kSame, num_images_, rows_, columns_, 64, 20},
                  ListOf(layout, 0), DType::kFloat16, DType::kFloat16, nullptr, random);
}

}  // namespace
}  // namespace voxserve::kernels::active_boxes_cuda_test
