#pragma once

// RulebookForms names the forms in which convolutions and pools on a GPU read a rulebook: pairs
// (kernels/conv/pair_tables.h) for gather-GEMM-scatter, neighbours (neighbours.h) for pools, and tiles (tiles.h) for
// implicit GEMM. A swapped form exchanges input and output rows.

namespace voxserve {

// The forms that a batch's steps read of one rulebook. Only these forms are made.
struct RulebookForms {
  bool pairs = false;               // one form serves both directions
  bool neighbours = false;          // for pools
  bool swapped_neighbours = false;  // for inverse pools
  bool tiles = false;
  bool swapped_tiles = false;  // for inverse and transposed convolutions
  bool sorts_rows = false;     // tiles sort their rows, which saves products and costs time (kernels/conv/tiles.h)

  bool operator==(const RulebookForms&) const = default;
  RulebookForms& operator|=(const RulebookForms& others) {
    pairs |= others.pairs;
    neighbours |= others.neighbours;
    swapped_neighbours |= others.swapped_neighbours;
    tiles |= others.tiles;
    swapped_tiles |= others.swapped_tiles;
    sorts_rows |= others.sorts_rows;
    return *this;
  }
};

}  // namespace voxserve
