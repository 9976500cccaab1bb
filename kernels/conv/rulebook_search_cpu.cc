#include <algorithm>
#include <memory_resource>
#include <numeric>
#include <vector>

#include "kernels/conv/rulebook_search.h"
#include "kernels/coordinates/coordinate_key.h"
#include "kernels/coordinates/floor_division.h"
#include "kernels/core/chunks.h"

namespace voxserve::kernels::cpu {
namespace {

constexpr int64_t kQueriesATask = 4096;
constexpr int64_t kRowsAChunk = 8192;
constexpr int64_t kTilesAChunk = 64;
constexpr int kBlock = 4;  // keys that a walk compares at once

// Returns the first position from `at` on whose key is not below `wanted`; keys ascend. The function first counts the
// smaller keys of a few blocks of kBlock keys: branch prediction cannot guess how far a walk goes, and a count needs no
// branch. If that does not reach `wanted`, it searches on in steps that double.
int64_t Advance(const uint64_t* keys, int64_t num_keys, int64_t at, uint64_t wanted) {
  int64_t stride = kBlock;
  for (int blocks = 0; blocks < 4 && at + kBlock <= num_keys; ++blocks) {
    int below = 0;
    for (int i = 0; i < kBlock; ++i) below += keys[at + i] < wanted;
    at += below;
    if (below < kBlock) return at;
  }
  while (at + stride < num_keys && keys[at + stride] < wanted) {
    at += stride;
    stride *= 2;
  }
  return std::lower_bound(keys + at, keys + std::min(num_keys, at + stride), wanted) - keys;
}

// One cell of the kernel. A query's output key is floor(in / stride) + translation.
struct Cell {
  int32_t offset;  // k
  uint64_t translation;
};

// The input rows of one residue modulo the stride, and the cells that read these rows. Cells that differ only on the
// last axis form a column, in order of their translations. The walk looks for the key of a column's first cell, and
// finds the keys of the other cells a few steps later.
struct Bucket {
  std::vector<std::vector<Cell>> columns;
  const uint64_t* quotients = nullptr;  // [num_rows] key of floor(in / stride), ascending
  const int32_t* rows = nullptr;        // [num_rows] input rows; null: 0, 1, 2, ...
  int64_t num_rows = 0;
};

// For the cells of one axis: the residues (modulo the stride) of the inputs that they read, and each cell's quotient.
struct AxisCells {
  std::vector<int32_t> residues;  // without repetition, ascending
  bool reads_all;                 // the cells read every residue from 0 to stride - 1
  std::vector<int32_t> which;     // [kernel_size] index of the cell's residue in `residues`
  std::vector<int32_t> quotient;  // [kernel_size] (Delta - residue) / stride

  AxisCells(const ConvGeometry& geometry, int axis) {
    const FloorDivision division(geometry.stride[axis]);
    for (int32_t cell = 0; cell < geometry.kernel_size[axis]; ++cell) {
      const int32_t delta = geometry.DeltaOnAxis(axis, cell);
      quotient.push_back(division.Quotient(delta));
      residues.push_back(delta - quotient.back() * geometry.stride[axis]);
    }
    const std::vector<int32_t> residue_of_cell = residues;
    std::sort(residues.begin(), residues.end());
    residues.erase(std::unique(residues.begin(), residues.end()), residues.end());
    reads_all = residues.size() == static_cast<size_t>(geometry.stride[axis]);
    for (const int32_t residue : residue_of_cell) which.push_back(Find(residue));
  }

  // Returns the index of a residue in `residues`, or -1 if no cell reads the residue.
  int32_t Find(int32_t residue) const {
    if (reads_all) return residue;
    const auto found = std::find(residues.begin(), residues.end(), residue);
    return found == residues.end() ? -1 : static_cast<int32_t>(found - residues.begin());
  }
};

class BucketedInputs {
 public:
  // Only cells [0, num_offsets) are put in buckets.
  BucketedInputs(const RulebookSearchParams& params, int32_t num_offsets, ThreadPool& pool,
                 std::pmr::memory_resource* memory)
      : geometry_(params.geometry),
        layout_(params.geometry.dimension),
        bucket_of_row_(memory),
        quotient_of_row_(memory),
        quotients_(memory),
        rows_(memory) {
    size_t num_buckets = 1;
    bool is_strided = false;
    for (int axis = 0; axis < geometry_.dimension; ++axis) {
      axes_.emplace_back(geometry_, axis);
      num_buckets *= axes_.back().residues.size();
      is_strided |= geometry_.stride[axis] != 1;
    }
    buckets_.resize(num_buckets);
    for (int32_t k = 0; k < num_offsets; ++k) AddCell(k);
    for (Bucket& bucket : buckets_) {
      for (std::vector<Cell>& column : bucket.columns) std::reverse(column.begin(), column.end());
    }
    if (is_strided) {
      Split(params, pool);
    } else {
      buckets_[0].quotients = params.in_keys;
      buckets_[0].num_rows = params.num_in;
    }
  }

  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  void AddCell(int32_t k) {
    const int last = geometry_.dimension - 1;
    size_t bucket = 0;
    Axes translation = {0, 0, 0, 0};
    const Axes cell = geometry_.Cell(k);
    for (int axis = 0; axis <= last; ++axis) {
      const AxisCells& cells = axes_[static_cast<size_t>(axis)];
      const auto c = static_cast<size_t>(cell[axis]);
      bucket = bucket * cells.residues.size() + static_cast<size_t>(cells.which[c]);
      translation[axis] = -cells.quotient[c];
    }
    std::vector<std::vector<Cell>>& columns = buckets_[bucket].columns;
    const auto column_of = [&](int32_t offset) { return geometry_.CellInBox(offset) / geometry_.kernel_size[last]; };
    if (columns.empty() || column_of(columns.back().front().offset) != column_of(k)) {
      columns.emplace_back();
    }
    columns.back().push_back({.offset = k, .translation = layout_.Translation(translation)});
  }

  // Returns the bucket of an input's key, or -1 if no cell reads the input. If there is a bucket, sets `quotient` to
  // the key of floor(coordinate / stride).
  int32_t BucketOf(uint64_t key, uint64_t& quotient) const {
    Axes floor = {0, 0, 0, 0};
    int32_t bucket = 0;
    for (int axis = 0; axis < geometry_.dimension; ++axis) {
      const int32_t coordinate = layout_.Coordinate(key, axis);
      floor[axis] = divisions_[static_cast<size_t>(axis)].Quotient(coordinate);
      const AxisCells& cells = axes_[static_cast<size_t>(axis)];
      const int32_t which = cells.Find(coordinate - floor[axis] * geometry_.stride[axis]);
      if (which < 0) return -1;
      bucket = bucket * static_cast<int32_t>(cells.residues.size()) + which;
    }
    quotient = layout_.Pack(layout_.Sample(key), floor);
    return bucket;
  }

  // Distributes the input rows to the buckets. The rows of a bucket keep their order.
  void Split(const RulebookSearchParams& params, ThreadPool& pool) {
    for (int axis = 0; axis < geometry_.dimension; ++axis) divisions_.emplace_back(geometry_.stride[axis]);
    const auto num_in = static_cast<size_t>(params.num_in);
    const size_t num_buckets = buckets_.size();
    Renew(bucket_of_row_, num_in);
    Renew(quotient_of_row_, num_in);
    Renew(quotients_, num_in);
    Renew(rows_, num_in);

    const Chunks chunks(params.num_in, kRowsAChunk, pool);
    const auto num_chunks = static_cast<size_t>(chunks.num_chunks());
    std::vector<int64_t> next(num_buckets * num_chunks, 0);  // [bucket, chunk]
    chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int32_t bucket = BucketOf(params.in_keys[row], quotient_of_row_[static_cast<size_t>(row)]);
        bucket_of_row_[static_cast<size_t>(row)] = bucket;
        if (bucket >= 0) ++next[static_cast<size_t>(bucket) * num_chunks + static_cast<size_t>(chunk)];
      }
    });
    const int64_t total = ExclusivePrefixSum(next);
    for (size_t b = 0; b < num_buckets && num_chunks > 0; ++b) {
      const int64_t begin = next[b * num_chunks];
      const int64_t end = b + 1 < num_buckets ? next[(b + 1) * num_chunks] : total;
      buckets_[b].quotients = quotients_.data() + begin;
      buckets_[b].rows = rows_.data() + begin;
      buckets_[b].num_rows = end - begin;
    }
    chunks.ForEach(pool, [&](int64_t chunk, int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int32_t bucket = bucket_of_row_[static_cast<size_t>(row)];
        if (bucket < 0) continue;
        const auto at =
            static_cast<size_t>(next[static_cast<size_t>(bucket) * num_chunks + static_cast<size_t>(chunk)]++);
        quotients_[at] = quotient_of_row_[static_cast<size_t>(row)];
        rows_[at] = static_cast<int32_t>(row);
      }
    });
  }

  const ConvGeometry& geometry_;
  CoordinateKey layout_;
  std::vector<AxisCells> axes_;
  std::vector<FloorDivision> divisions_;
  std::vector<Bucket> buckets_;
  ScratchVector<int32_t> bucket_of_row_;
  ScratchVector<uint64_t> quotient_of_row_;
  ScratchVector<uint64_t> quotients_;
  ScratchVector<int32_t> rows_;
};

// The pairs that one task found for one cell.
struct Pairs {
  Pairs(const int32_t* in, const int32_t* out, int64_t count, std::pmr::memory_resource* memory)
      : in_rows(memory), out_rows(memory) {
    const auto size = static_cast<size_t>(count);
    in_rows.resize(size);
    out_rows.resize(size);
    std::copy_n(in, size, in_rows.data());
    std::copy_n(out, size, out_rows.data());
  }

  int64_t size() const { return static_cast<int64_t>(in_rows.size()); }

  ScratchVector<int32_t> in_rows;
  ScratchVector<int32_t> out_rows;
};

// A range of one bucket's queries, and the pairs that the queries found.
struct Task {
  const Bucket* bucket;
  int64_t begin;
  int64_t end;
  std::vector<Pairs> pairs;  // one entry per cell, in the order of the bucket's columns
};

class TaskRunner {
 public:
  TaskRunner(const RulebookSearchParams& params, Task& task, std::pmr::memory_resource* memory)
      : params_(params), task_(task), memory_(memory), in_(memory), out_(memory) {}

  void Run() {
    size_t widest = 1;
    for (const std::vector<Cell>& column : task_.bucket->columns) widest = std::max(widest, column.size());
    const auto num_queries = static_cast<size_t>(task_.end - task_.begin);
    Renew(in_, widest * num_queries);
    Renew(out_, widest * num_queries);
    for (const std::vector<Cell>& column : task_.bucket->columns) {
      found_.assign(column.size(), 0);
      if (params_.table == nullptr) {
        Walk(column);
      } else {
        LookUp(column);
      }
      for (size_t c = 0; c < column.size(); ++c) {
        const size_t first = c * num_queries;
        task_.pairs.emplace_back(&in_[first], &out_[first], found_[c], memory_);
      }
    }
  }

 private:
  int32_t InRow(int64_t query) const {
    return task_.bucket->rows == nullptr ? static_cast<int32_t>(query) : task_.bucket->rows[query];
  }

  // Always writes the pair, but moves on to the next place only if the output row exists. This avoids a branch.
  void Add(size_t cell, int64_t query, int64_t out_row, bool exists) {
    const size_t at = cell * static_cast<size_t>(task_.end - task_.begin) + static_cast<size_t>(found_[cell]);
    in_[at] = InRow(query);
    out_[at] = static_cast<int32_t>(out_row);
    found_[cell] += exists;
  }

  void Walk(const std::vector<Cell>& column) {
    if (params_.num_out == 0) return;
    const bool is_run = column.back().translation - column.front().translation == column.size() - 1;
    switch (is_run ? column.size() : 0) {
      case 1:
        return WalkRun<1>(column);
      case 2:
        return WalkRun<2>(column);
      case 3:
        return WalkRun<3>(column);
      case 5:
        return WalkRun<5>(column);
      default:
        return WalkAny(column);
    }
  }

  // Handles a column of adjacent cells, which nearly all kernels have. These cells look for consecutive keys, so each
  // cell takes one comparison. If the keys match, the next cell compares the next output key.
  template <int kCells>
  void WalkRun(const std::vector<Cell>& column) {
    const uint64_t* quotients = task_.bucket->quotients;
    const uint64_t* keys = params_.out_keys;
    const int64_t num_keys = params_.num_out;
    const uint64_t translation = column[0].translation;
    const int64_t num_queries = task_.end - task_.begin;
    int64_t found[kCells] = {};
    int64_t at = std::lower_bound(keys, keys + num_keys, quotients[task_.begin] + translation) - keys;
    for (int64_t query = task_.begin; query < task_.end; ++query) {
      const uint64_t wanted = quotients[query] + translation;
      at = Advance(keys, num_keys, at, wanted);
      const int32_t in_row = InRow(query);
      int64_t near = at;
      for (int c = 0; c < kCells; ++c) {
        // Behind the end all keys are below the wanted one, so reading the last key gives "no match".
        const bool exists = keys[std::min(near, num_keys - 1)] == wanted + static_cast<uint64_t>(c);
        in_[static_cast<size_t>(c * num_queries + found[c])] = in_row;
        out_[static_cast<size_t>(c * num_queries + found[c])] = static_cast<int32_t>(near);
        found[c] += exists;
        near += exists;
      }
    }
    std::copy_n(found, kCells, found_.begin());
  }

  void WalkAny(const std::vector<Cell>& column) {
    const uint64_t* quotients = task_.bucket->quotients;
    const uint64_t* keys = params_.out_keys;
    const int64_t num_keys = params_.num_out;
    int64_t at = std::lower_bound(keys, keys + num_keys, quotients[task_.begin] + column[0].translation) - keys;
    for (int64_t query = task_.begin; query < task_.end; ++query) {
      at = Advance(keys, num_keys, at, quotients[query] + column[0].translation);
      int64_t near = at;
      for (size_t c = 0; c < column.size(); ++c) {
        const uint64_t wanted = quotients[query] + column[c].translation;
        while (near < num_keys && keys[near] < wanted) ++near;
        if (near == num_keys) break;
        Add(c, query, near, keys[near] == wanted);
      }
    }
  }

  void LookUp(const std::vector<Cell>& column) {
    for (size_t c = 0; c < column.size(); ++c) {
      for (int64_t query = task_.begin; query < task_.end; ++query) {
        const int32_t row = params_.table->Find(task_.bucket->quotients[query] + column[c].translation);
        Add(c, query, row, row >= 0);
      }
    }
  }

  const RulebookSearchParams& params_;
  Task& task_;
  std::pmr::memory_resource* const memory_;
  ScratchVector<int32_t> in_;   // [cells of the column, queries] input rows of the pairs
  ScratchVector<int32_t> out_;  // the same for output rows
  std::vector<int64_t> found_;  // the number of pairs of each cell of the column
};

// Computes tile_begin of a rulebook whose other members are complete.
void IndexTiles(ThreadPool& pool, Rulebook& rulebook) {
  const RulebookView view = rulebook.View();
  const auto num_offsets = static_cast<size_t>(view.num_offsets);
  Renew(rulebook.tile_begin, static_cast<size_t>(view.num_tiles() + 1) * num_offsets);
  pool.ParallelFor(view.num_tiles() + 1, kTilesAChunk, [&](int64_t begin, int64_t end) {
    for (size_t k = 0; k < num_offsets; ++k) {
      const int32_t* const last = view.out_rows + view.offset_begin[k + 1];
      const int32_t* pair = std::lower_bound(view.out_rows + view.offset_begin[k], last, begin * kRulebookTileRows);
      for (int64_t tile = begin; tile < end; ++tile) {
        while (pair != last && *pair < tile * kRulebookTileRows) ++pair;
        rulebook.tile_begin[static_cast<size_t>(tile) * num_offsets + k] = pair - view.out_rows;
      }
    }
  });
}

std::vector<Task> MakeTasks(const std::vector<Bucket>& buckets) {
  std::vector<Task> tasks;
  for (const Bucket& bucket : buckets) {
    if (bucket.columns.empty()) continue;
    for (int64_t begin = 0; begin < bucket.num_rows; begin += kQueriesATask) {
      tasks.push_back(
          {.bucket = &bucket, .begin = begin, .end = std::min(bucket.num_rows, begin + kQueriesATask), .pairs = {}});
    }
  }
  return tasks;
}

}  // namespace

void SearchRulebook(const RulebookSearchParams& params, ThreadPool& pool, Rulebook& rulebook) {
  const int32_t num_offsets = params.geometry.NumOffsets();
  const bool is_mirrored =
      params.in_keys == params.out_keys && params.num_in == params.num_out && params.geometry.IsSymmetric();
  const int32_t num_searched = is_mirrored ? num_offsets / 2 : num_offsets;
  const auto mirror = [&](int32_t k) { return static_cast<size_t>(num_offsets - 1 - k); };

  std::pmr::memory_resource* const memory = rulebook.in_rows.get_allocator().memory();
  const BucketedInputs inputs(params, num_searched, pool, memory);
  std::vector<Task> tasks = MakeTasks(inputs.buckets());
  pool.ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) TaskRunner(params, tasks[static_cast<size_t>(t)], memory).Run();
  });

  // Computes the number of pairs of each cell, and where each task's pairs begin among the pairs of a cell.
  std::vector<int64_t> sizes(static_cast<size_t>(num_offsets), 0);
  std::vector<std::vector<int64_t>> first_pair(tasks.size());  // [task][cell in the order of the bucket's columns]
  for (size_t t = 0; t < tasks.size(); ++t) {
    size_t cell = 0;
    for (const std::vector<Cell>& column : tasks[t].bucket->columns) {
      for (const Cell& c : column) {
        first_pair[t].push_back(sizes[static_cast<size_t>(c.offset)]);
        sizes[static_cast<size_t>(c.offset)] += tasks[t].pairs[cell++].size();
      }
    }
  }
  if (is_mirrored) {
    for (int32_t k = 0; k < num_searched; ++k) sizes[mirror(k)] = sizes[static_cast<size_t>(k)];
    sizes[static_cast<size_t>(num_searched)] = params.num_in;
  }
  const int64_t num_pairs = ExclusivePrefixSum(sizes);
  rulebook.num_in_rows = params.num_in;
  rulebook.num_out_rows = params.num_out;
  rulebook.offset_begin = std::move(sizes);
  rulebook.offset_begin.push_back(num_pairs);
  Renew(rulebook.in_rows, static_cast<size_t>(num_pairs));
  Renew(rulebook.out_rows, static_cast<size_t>(num_pairs));

  pool.ParallelFor(static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto t = static_cast<size_t>(i);
      const Task& task = tasks[t];
      size_t cell = 0;
      for (const std::vector<Cell>& column : task.bucket->columns) {
        for (const Cell& c : column) {
          const Pairs& pairs = task.pairs[cell];
          const int64_t count = pairs.size();
          const int32_t* const in = pairs.in_rows.data();
          const int32_t* const out = pairs.out_rows.data();
          const int64_t at = rulebook.offset_begin[static_cast<size_t>(c.offset)] + first_pair[t][cell];
          std::copy_n(in, count, rulebook.in_rows.data() + at);
          std::copy_n(out, count, rulebook.out_rows.data() + at);
          if (is_mirrored) {
            const int64_t mirrored = rulebook.offset_begin[mirror(c.offset)] + first_pair[t][cell];
            std::copy_n(out, count, rulebook.in_rows.data() + mirrored);
            std::copy_n(in, count, rulebook.out_rows.data() + mirrored);
          }
          ++cell;
        }
      }
    }
  });
  if (is_mirrored) {
    const auto centre = static_cast<size_t>(num_searched);
    std::iota(rulebook.in_rows.data() + rulebook.offset_begin[centre],
              rulebook.in_rows.data() + rulebook.offset_begin[centre + 1], 0);
    std::iota(rulebook.out_rows.data() + rulebook.offset_begin[centre],
              rulebook.out_rows.data() + rulebook.offset_begin[centre + 1], 0);
  }
  IndexTiles(pool, rulebook);
}

void SwapRulebook(const RulebookView& rulebook, ThreadPool& pool, Rulebook& swapped) {
  const int64_t num_pairs = rulebook.num_pairs();
  swapped.num_in_rows = rulebook.num_out_rows;
  swapped.num_out_rows = rulebook.num_in_rows;
  swapped.offset_begin.assign(rulebook.offset_begin, rulebook.offset_begin + rulebook.num_offsets + 1);
  Renew(swapped.in_rows, static_cast<size_t>(num_pairs));
  Renew(swapped.out_rows, static_cast<size_t>(num_pairs));
  std::copy_n(rulebook.out_rows, num_pairs, swapped.in_rows.data());
  std::copy_n(rulebook.in_rows, num_pairs, swapped.out_rows.data());
  IndexTiles(pool, swapped);
}

}  // namespace voxserve::kernels::cpu
