#pragma once

// Makes rulebooks on the CPU, in the form of rulebook.h: for each kernel cell (offset), the input row that each output
// row reads.
//
// A pair (i, o) belongs to cell k if in[i] = stride * out[o] + Delta(k) (conv_geometry.h). The search goes from inputs
// to outputs. It first splits the input rows by their residue modulo the stride. A cell reads the inputs of one residue
// only. For these inputs, the output is floor(in / stride) plus a constant translation. So each query (the key of an
// output to look for) needs no further division, and the queries of a cell ascend like the input rows. A query is
// answered by walking along the sorted output keys (MapSearch::kMerge) or by a look-up in a table of the output keys.
// All methods give the same rulebook.
//
// If inputs and outputs are the same sites and the geometry is symmetric, only the first half of the cells is searched.
// The centre cell pairs each row with itself, and the other half mirrors the first.
//
// The result does not depend on the number of threads. The functions throw std::bad_alloc if the memory is used up.

#include <cstdint>
#include <type_traits>
#include <vector>

#include "kernels/conv/rulebook.h"
#include "kernels/coordinates/conv_geometry.h"
#include "kernels/coordinates/coordinate_table.h"
#include "kernels/core/scratch.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::kernels {

// Owns the arrays of a RulebookView. A Rulebook can be filled again, and then keeps its memory.
struct Rulebook {
  // Returns an empty rulebook. The rulebook and the searches that fill it allocate their large arrays from `memory`,
  // which must outlive the rulebook.
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

  // Empties the rulebook and keeps its memory.
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

  // Keys (coordinate_key.h) are ascending and unique. A submanifold convolution passes the same pointer as in_keys and
  // out_keys.
  const uint64_t* in_keys = nullptr;
  int64_t num_in = 0;  // below 2^31, like num_out
  const uint64_t* out_keys = nullptr;
  int64_t num_out = 0;

  // A table of out_keys. Null selects MapSearch::kMerge, which needs no table and is much quicker on a CPU.
  const cpu::CoordinateTable* table = nullptr;
};
static_assert(std::is_trivially_copyable_v<RulebookSearchParams>);

namespace cpu {

// Fills `rulebook` with the pairs of the params' inputs and outputs.
void SearchRulebook(const RulebookSearchParams& params, ThreadPool& pool, Rulebook& rulebook);

// Makes the rulebook of the inverse convolution: inputs and outputs swap places, and cells keep their numbers.
void SwapRulebook(const RulebookView& rulebook, ThreadPool& pool, Rulebook& swapped);

}  // namespace cpu
}  // namespace voxserve::kernels
