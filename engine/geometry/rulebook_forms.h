#pragma once

// RulebookForms names the forms in which convolutions and pools on a GPU read a rulebook.

namespace voxserve {

// The forms of one rulebook that a batch's convolutions and pools read. Only these are made.
struct RulebookForms {
  bool pairs = false;               // serve both directions
  bool neighbours = false;          // for pools
  bool swapped_neighbours = false;  // for inverse pools
  bool tiles = false;
  bool swapped_tiles = false;  // for inverse and transposed convolutions

  bool operator==(const RulebookForms&) const = default;
  RulebookForms& operator|=(const RulebookForms& others) {
    pairs |= others.pairs;
    neighbours |= others.neighbours;
    swapped_neighbours |= others.swapped_neighbours;
    tiles |= others.tiles;
    swapped_tiles |= others.swapped_tiles;
    return *this;
  }
};

}  // namespace voxserve
