#pragma once

// Makes rulebooks: which input rows each output row reads, cell by cell (rulebook.h has the form).
//
// A pair (i, o) belongs to cell k where in[i] = stride * out[o] + Delta(k). The search goes from inputs to outputs:
// input rows are split once by their residue modulo the stride; a cell reads one residue only, and within it the output
// is a constant translation of floor(in / stride). So no query is made whose division would not come out even, and the
// queries of a cell ascend as the rows do. They are answered by walking the sorted output keys beside them (kMerge), or
// by a table over the output keys. The three give the same rulebook.
//
// Where inputs and outputs are the same sites and the geometry is symmetric, only the first half of the cells is
// searched: the centre is the identity and the other half is mirrored.
//
// Deterministic whatever the number of threads.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/rulebook.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/core/scratch.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// Owns what a RulebookView shows; may be refilled, keeping its memory.
struct Rulebook {
  // An empty one that takes what it holds, and what a search needs meanwhile, of this memory, which outlives it.
  static Rulebook In(std::pmr::memory_resource* memory) {
    return {.in_rows = ScratchVector<int32_t>(memory),
            .out_rows = ScratchVector<int32_t>(memory),
            .tile_begin = ScratchVector<int64_t>(memory)};
  }

  int64_t num_out_rows = 0;
  int64_t num_in_rows = 0;
  std::vector<int64_t> offset_begin;  // [K + 1]
  ScratchVector<int32_t> in_rows;     // [num_pairs]
  ScratchVector<int32_t> out_rows;    // [num_pairs]
  ScratchVector<int64_t> tile_begin;  // [num_tiles + 1, K]

  // Empties it. Its memory stays.
  void Clear() {
    num_out_rows = 0;
    num_in_rows = 0;
    offset_begin.clear();
    in_rows.clear();
    out_rows.clear();
    tile_begin.clear();
  }
  RulebookView View() const {
    return {.num_offsets = offset_begin.empty() ? 0 : static_cast<int32_t>(offset_begin.size() - 1),
            .num_out_rows = num_out_rows,
            .num_in_rows = num_in_rows,
            .offset_begin = offset_begin.data(),
            .in_rows = in_rows.data(),
            .out_rows = out_rows.data(),
            .tile_begin = tile_begin.data()};
  }
  int64_t needed_bytes() const {
    return static_cast<int64_t>((offset_begin.size() + tile_begin.size()) * sizeof(int64_t) +
                                (in_rows.size() + out_rows.size()) * sizeof(int32_t));
  }
};

struct RulebookSearchParams {
  ConvGeometry geometry;  // |Delta| <= kCoordinateMargin

  // Ascending, unique keys. A submanifold convolution passes the same pointer twice.
  const uint64_t* in_keys = nullptr;
  int64_t num_in = 0;  // below 2^31, as num_out
  const uint64_t* out_keys = nullptr;
  int64_t num_out = 0;

  // Over out_keys; null: kMerge, which on a CPU is the quicker by far and needs no table built.
  const cpu::CoordinateTable* table = nullptr;
};
static_assert(std::is_trivially_copyable_v<RulebookSearchParams>);

namespace cpu {

void SearchRulebook(const RulebookSearchParams& params, ThreadPool& pool, Rulebook& rulebook);

// The rulebook of the inverse convolution: inputs and outputs change places, cells keep their numbers.
void SwapRulebook(const RulebookView& rulebook, ThreadPool& pool, Rulebook& swapped);

}  // namespace cpu
}  // namespace voxserve::kernels
