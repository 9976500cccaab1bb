#include <algorithm>
#include <bit>

#include "kernels/coordinates/coordinate_table.h"
#include "kernels/core/chunks.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kKeysAChunk = 8192;
constexpr int64_t kMinSlots = 16;

}  // namespace

MapSearch CoordinateTable::Build(const CoordinateTableParams& params, ThreadPool& pool) {
  for (const int64_t cell : touched_cells_) cells_[static_cast<size_t>(cell)] = -1;
  touched_cells_.clear();
  boxes_.clear();
  num_cells_ = 0;
  layout_ = CoordinateKey(params.dimension);
  search_ = params.search == MapSearch::kGrid && BuildGrid(params, pool) ? MapSearch::kGrid : MapSearch::kHash;
  if (search_ == MapSearch::kHash) BuildHash(params);
  return search_;
}

int64_t CoordinateTable::needed_bytes() const {
  if (search_ == MapSearch::kHash) return static_cast<int64_t>(slots_.size() * sizeof(Slot));
  return num_cells_ * static_cast<int64_t>(sizeof(int32_t)) +
         static_cast<int64_t>(boxes_.size() * sizeof(Box) + touched_cells_.size() * sizeof(int64_t));
}

// Leaves boxes_ empty and returns false if the cells need more than params.max_grid_bytes.
bool CoordinateTable::BuildGrid(const CoordinateTableParams& params, ThreadPool& pool) {
  if (params.num_keys == 0) return true;
  std::vector<Box> boxes(static_cast<size_t>(layout_.Sample(params.keys[params.num_keys - 1])) + 1);
  const int64_t max_cells = params.max_grid_bytes / static_cast<int64_t>(sizeof(int32_t));
  int64_t num_cells = 0;
  int64_t begin = 0;
  for (size_t sample = 0; sample < boxes.size(); ++sample) {
    Box& box = boxes[sample];
    Axes max = {0, 0, 0, 0};
    int64_t row = begin;
    for (; row < params.num_keys && layout_.Sample(params.keys[row]) == static_cast<int32_t>(sample); ++row) {
      const Axes coordinate = layout_.Unpack(params.keys[row]);
      for (int axis = 0; axis < params.dimension; ++axis) {
        box.min[axis] = row == begin ? coordinate[axis] : std::min(box.min[axis], coordinate[axis]);
        max[axis] = row == begin ? coordinate[axis] : std::max(max[axis], coordinate[axis]);
      }
    }
    if (row == begin) continue;
    int64_t volume = 1;
    for (int axis = 0; axis < params.dimension; ++axis) {
      box.extent[axis] = int64_t{max[axis]} - box.min[axis] + 1;
      if (box.extent[axis] > max_cells / volume) return false;
      volume *= box.extent[axis];
    }
    box.first_cell = num_cells;
    num_cells += volume;
    if (num_cells > max_cells) return false;
    begin = row;
  }

  boxes_ = std::move(boxes);
  num_cells_ = num_cells;
  if (static_cast<int64_t>(cells_.size()) < num_cells) {
    Free(cells_);
    cells_.resize(static_cast<size_t>(num_cells), -1);
  }
  Renew(touched_cells_, static_cast<size_t>(params.num_keys));
  pool.ParallelFor(params.num_keys, kKeysAChunk, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t cell = CellOf(params.keys[row]);
      touched_cells_[static_cast<size_t>(row)] = cell;
      cells_[static_cast<size_t>(cell)] = static_cast<int32_t>(row);
    }
  });
  return true;
}

void CoordinateTable::BuildHash(const CoordinateTableParams& params) {
  const auto num_slots =
      static_cast<size_t>(std::bit_ceil(static_cast<uint64_t>(std::max(kMinSlots, 2 * params.num_keys))));
  Renew(slots_, num_slots);
  std::fill(slots_.begin(), slots_.end(), Slot{.key = kNoKey, .row = -1});
  seed_ = params.seed;
  hash_shift_ = 64 - std::bit_width(num_slots - 1);
  for (int64_t row = 0; row < params.num_keys; ++row) {
    size_t slot = FirstSlot(params.keys[row]);
    while (slots_[slot].key != kNoKey) slot = (slot + 1) & (num_slots - 1);
    slots_[slot] = {.key = params.keys[row], .row = static_cast<int32_t>(row)};
  }
}

}  // namespace voxserve::kernels::cpu
