#include <algorithm>
#include <cstddef>

#include "kernels/core/clear.h"
#include "kernels/core/launch.cuh"
#include "kernels/core/row_launch.cuh"
#include "kernels/core/visit_dimension.cuh"
#include "kernels/image/sites/active_boxes.h"
#include "kernels/image/sites/site_grid.cuh"

namespace voxserve::kernels::cuda {
namespace {

constexpr int32_t kLanes = 32;
constexpr int32_t kWordBits = 32;

// Sets the bits of the positions that have a site, one site per thread.
template <int kDimension>
__global__ void __launch_bounds__(kBlockThreads) MarkPositionsKernel(const ListActiveBoxesParams params) {
  WaitForEarlierKernels();
  const int64_t site = int64_t{blockIdx.x} * kBlockThreads + threadIdx.x;
  if (site >= NumRows(params.num_sites, params.device_num_sites)) return;
  const int64_t cell = CellOf<kDimension>(params.grid, params.keys[site]);
  if (cell == kNoCell) return;
  const int64_t position = cell / params.depth, row = position / params.layout.columns();
  const auto column = static_cast<int32_t>(position - row * params.layout.columns());
  atomicOr(reinterpret_cast<unsigned*>(params.memory) + row * params.layout.words_a_row() + column / kWordBits,
           1u << column % kWordBits);
}

// Positions [first, last] of an axis.
struct Range {
  int32_t first;
  int32_t last;

  // Returns the positions of the source on which a box depends. It has the positions [begin, begin + size); those from
  // out_size on are outside of the image.
  __device__ static Range OfSource(const SourceWindow& window, int32_t begin, int32_t size, int32_t out_size) {
    const int32_t last = min(begin + size, out_size) - 1;
    return {begin * window.step - window.before, last * window.step + window.after};
  }
  __device__ bool IsWithin(int32_t size) const { return first >= 0 && last < size; }
};

// Returns the bits of word `word` that belong to columns of the range.
__device__ uint32_t BitsOf(const Range& columns, int32_t word) {
  const int32_t first = max(columns.first - word * kWordBits, 0), last = min(columns.last - word * kWordBits, 31);
  return first > last ? 0 : ~0u >> (31 - last) & ~0u << first;
}

struct Lists {
  ActiveBoxList of[ActiveBoxLayout::kMaxConvs];  // by convolution
};

// Puts the boxes of convolution blockIdx.y on its list, one box per warp.
__global__ void __launch_bounds__(kBlockThreads)
    ListBoxesKernel(const __grid_constant__ ListActiveBoxesParams params, const __grid_constant__ Lists lists) {
  const ActiveBoxLayout& layout = params.layout;
  const auto number = static_cast<int>(blockIdx.y);
  const ListedConv& conv = layout.conv(number);
  const ActiveBoxList& list = lists.of[number];
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kLanes;
  const int64_t box = (int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) / kLanes;
  WaitForEarlierKernels();
  if (list.box.rows == 0) return;
  const int64_t boxes_an_image = list.box.NumIn(conv.out_rows, conv.out_columns);
  const int64_t num_boxes = params.num_samples * boxes_an_image;
  if (box >= num_boxes) return;
  const int64_t image = box / boxes_an_image;
  const auto of_image = static_cast<int32_t>(box - image * boxes_an_image);
  const int32_t boxes_a_row = (conv.out_columns - 1) / list.box.columns + 1;
  const int32_t box_row = of_image / boxes_a_row, box_column = of_image - box_row * boxes_a_row;
  Range rows = Range::OfSource(conv.windows[0], box_row * list.box.rows, list.box.rows, conv.out_rows);
  Range columns = Range::OfSource(conv.windows[1], box_column * list.box.columns, list.box.columns, conv.out_columns);
  bool is_active =
      (box_row + 1) * list.box.rows > conv.out_rows || (box_column + 1) * list.box.columns > conv.out_columns;
  is_active |= !conv.reads_source && !(rows.IsWithin(layout.rows()) && columns.IsWithin(layout.columns()));
  rows = {max(rows.first, 0), min(rows.last, layout.rows() - 1)};
  columns = {max(columns.first, 0), min(columns.last, layout.columns() - 1)};
  const int32_t first_word = columns.first / kWordBits;
  const int32_t num_words = columns.last < columns.first ? 0 : columns.last / kWordBits - first_word + 1;
  const uint32_t* const bits =
      reinterpret_cast<const uint32_t*>(params.memory) + image * layout.rows() * layout.words_a_row();
  const int32_t num_read = (rows.last - rows.first + 1) * num_words;
  for (int32_t first = 0; !is_active && first < num_read; first += kLanes) {
    const int32_t i = min(first + lane, num_read - 1), row = rows.first + i / num_words,
                  word = first_word + i % num_words;
    const uint32_t sites = bits[int64_t{row} * layout.words_a_row() + word] & BitsOf(columns, word);
    is_active = __any_sync(~0u, sites != 0);
  }
  if (lane != 0) return;
  if (is_active) {
    list.boxes[1 + atomicAdd(list.header + ActiveBoxList::kActive, 1)] = static_cast<int32_t>(box);
    return;
  }
  const int32_t before = atomicAdd(list.header + ActiveBoxList::kQuiet, 1);
  list.boxes[before == 0 ? 0 : num_boxes + 1 - before] = static_cast<int32_t>(box);
}

}  // namespace

cudaError_t ListActiveBoxes(const ListActiveBoxesParams& params, cudaStream_t stream) {
  const ActiveBoxLayout& layout = params.layout;
  if (params.num_samples == 0 || layout.num_convs() == 0) return cudaSuccess;
  const NvtxRange range("ListActiveBoxes");
  Lists lists;
  int64_t most_boxes = 0;
  for (int i = 0; i < layout.num_convs(); ++i) {
    const ListedConv& conv = layout.conv(i);
    lists.of[i] = layout.ListOf(i, params.num_samples, NumSms(), params.memory);
    const ImageBox& box = lists.of[i].box;
    if (box.rows == 0) continue;
    most_boxes = std::max(most_boxes, params.num_samples * box.NumIn(conv.out_rows, conv.out_columns));
  }
  if (most_boxes == 0) return cudaSuccess;
  // Clear takes whole numbers of 8 bytes; the lists stand behind.
  const int64_t cleared = (layout.ClearedInts(params.num_samples) + 1) / 2 * 2;
  VOXSERVE_RETURN_IF_CUDA(Clear(params.memory, static_cast<size_t>(cleared) * sizeof(int32_t), stream));
  VOXSERVE_RETURN_IF_CUDA(VisitDimension(params.grid.dimension, [&](auto dimension) {
    return LaunchEarly(MarkPositionsKernel<dimension()>, dim3(NumBlocks(params.num_sites)), kBlockThreads, 0, stream,
                       params);
  }));
  const dim3 blocks(NumBlocks(most_boxes * kLanes), static_cast<unsigned>(layout.num_convs()));
  return LaunchEarly(ListBoxesKernel, blocks, kBlockThreads, 0, stream, params, lists);
}

}  // namespace voxserve::kernels::cuda
