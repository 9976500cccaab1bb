#pragma once

// Much of an image that is made of sites, seen from above, is empty. Far from its sites and from its border, a
// convolution computes the same numbers at all positions: those of an empty image. ListActiveBoxes tells where.
//
// The output of a convolution is cut into boxes of positions, one for each thread block at a time. A box is quiet if no
// position of it depends on a site or on the image's border, through all convolutions from the sites' image on.
// Otherwise, or if it reaches out of the image, it is active. Conv2d computes the active boxes and one quiet box, which
// it copies to the others, position by position. The results have the same bytes as if all boxes were computed, since
// positions at the same place of quiet boxes add up equal numbers in the same order. Behind transposed convolutions
// numbers repeat after a period, which must divide the rows and columns of a box.
//
// Only Hopper has convolutions of boxes (kernels/image/conv2d_listed_boxes.cuh).

#include <array>
#include <cstdint>
#include <type_traits>

#include "kernels/core/cuda_stream.h"
#include "kernels/image/sites/site_grid.h"

namespace voxserve::kernels {

// The positions of the sites' image on which position y of an image depends, on one axis: step y - before to
// step y + after.
struct SourceWindow {
  int32_t step = 1;
  int32_t before = 0;
  int32_t after = 0;

  bool operator==(const SourceWindow&) const = default;
};

// Positions of an image, in rows and columns.
struct ImageBox {
  int32_t rows = 0;  // 0: there are no boxes
  int32_t columns = 0;

  constexpr int64_t NumIn(int64_t image_rows, int64_t image_columns) const {
    return ((image_rows - 1) / rows + 1) * ((image_columns - 1) / columns + 1);
  }
  bool operator==(const ImageBox&) const = default;
};

inline constexpr int32_t kImageBoxColumns = 16;  // of all boxes
// The boxes that a thread block computes at a time: with 64 channels, and with 128 where these need no more padding.
inline constexpr ImageBox kNarrowImageBox{16, kImageBoxColumns};
inline constexpr ImageBox kWideImageBox{12, kImageBoxColumns};

// Returns the box for the outputs of a convolution, for GPUs with num_sms multiprocessors. With few boxes for each of
// them, leaving some out gains nothing, and the box has no rows.
constexpr ImageBox ImageBoxFor(int64_t num_images, int64_t out_rows, int64_t out_columns, int32_t out_channels,
                               int64_t num_sms) {
  const bool is_wide = (out_channels + 63) / 64 % 2 == 0;
  const ImageBox box = is_wide ? kWideImageBox : kNarrowImageBox;
  return num_images * box.NumIn(out_rows, out_columns) >= 2 * num_sms ? box : ImageBox();
}

// The list of a convolution's boxes in device memory. Boxes are numbered from row to row and from image to image. A
// list serves one call of Conv2d: ListActiveBoxes must write it again before the next one.
struct ActiveBoxList {
  static constexpr int kHeaderInts = 16;
  static constexpr int kActive = 0;     // the number of active boxes
  static constexpr int kQuiet = 1;      // the number of quiet boxes
  static constexpr int kFirstFlag = 2;  // for each column tile: 1 once the first box is stored
  static constexpr int kMaxColumnTiles = kHeaderInts - kFirstFlag;

  ImageBox box;               // without rows: there is no list
  int32_t* header = nullptr;  // [kHeaderInts]
  // [1 + boxes]: a quiet box, if there is one; then the active ones. The other quiet ones stand at the end, the first
  // of them last.
  int32_t* boxes = nullptr;
};

// A convolution whose boxes are listed.
struct ListedConv {
  int32_t out_rows = 0;
  int32_t out_columns = 0;
  int32_t out_channels = 0;
  std::array<SourceWindow, 2> windows;  // of its output, with its residual's, on rows and columns
  // True if the convolution reads the sites' image itself, and has no residual. The zeros around the image are then as
  // those within.
  bool reads_source = false;
};

// The convolutions whose boxes depend on the sites of one image, and the memory of their lists.
class ActiveBoxLayout {
 public:
  static constexpr int kMaxConvs = 48;

  // rows, columns: of the sites' image.
  constexpr ActiveBoxLayout(int32_t rows, int32_t columns) : rows_(rows), columns_(columns) {}

  // Adds a convolution and returns its number; -1 if there are kMaxConvs already.
  constexpr int Add(const ListedConv& conv) {
    if (num_convs_ == kMaxConvs) return -1;
    convs_[static_cast<size_t>(num_convs_)] = conv;
    return num_convs_++;
  }

  constexpr int num_convs() const { return num_convs_; }
  constexpr const ListedConv& conv(int number) const { return convs_[static_cast<size_t>(number)]; }
  constexpr int32_t rows() const { return rows_; }
  constexpr int32_t columns() const { return columns_; }
  constexpr int32_t words_a_row() const { return (columns_ + 31) / 32; }

  // These functions count int32_t. The memory begins with a bit for each position of the sites' images, and the headers
  // of the lists, which ListActiveBoxes clears first.
  constexpr int64_t ClearedInts(int64_t num_images) const {
    return num_images * rows_ * words_a_row() + int64_t{num_convs_} * ActiveBoxList::kHeaderInts;
  }
  // n images need at most n times as many.
  constexpr int64_t IntsAnImage() const { return ListBegin(num_convs_, 1); }

  constexpr int64_t HeaderBegin(int number, int64_t num_images) const {
    return num_images * rows_ * words_a_row() + int64_t{number} * ActiveBoxList::kHeaderInts;
  }
  // The lists have room for the smaller boxes.
  constexpr int64_t ListBegin(int number, int64_t num_images) const {
    int64_t begin = ClearedInts(num_images);
    for (int i = 0; i < number; ++i) {
      begin += num_images * kWideImageBox.NumIn(conv(i).out_rows, conv(i).out_columns) + 1;
    }
    return begin;
  }

  // Returns the list of a convolution in `memory`.
  constexpr ActiveBoxList ListOf(int number, int64_t num_images, int64_t num_sms, int32_t* memory) const {
    const ListedConv& of = conv(number);
    return {.box = ImageBoxFor(num_images, of.out_rows, of.out_columns, of.out_channels, num_sms),
            .header = memory + HeaderBegin(number, num_images),
            .boxes = memory + ListBegin(number, num_images)};
  }

 private:
  int32_t rows_, columns_;
  int num_convs_ = 0;
  std::array<ListedConv, kMaxConvs> convs_;
};
static_assert(std::is_trivially_copyable_v<ActiveBoxLayout>);

struct ListActiveBoxesParams {
  ActiveBoxLayout layout;
  // The sites and their grid, as in SitesToCells. Its image has a position for every `depth` cells.
  SiteGrid grid;
  int32_t depth = 1;
  int64_t num_samples = 0;
  const uint64_t* keys = nullptr;
  int64_t num_sites = 0;
  const int64_t* device_num_sites = nullptr;
  int32_t* memory = nullptr;  // layout.IntsAnImage() for each sample
};

namespace cuda {

// Writes the lists. A list's order differs from run to run, what Conv2d computes by it does not.
cudaError_t ListActiveBoxes(const ListActiveBoxesParams& params, cudaStream_t stream);

}  // namespace cuda
}  // namespace voxserve::kernels
