#pragma once

// The forms in which a GPU's convolutions and pools read a rulebook.

namespace voxserve {

// The forms that a batch's convolutions and pools read of one rulebook. Each is made only where it is asked for.
struct RulebookForms {
  bool pairs = false;               // either way round
  bool neighbours = false;          // read by pools
  bool swapped_neighbours = false;  // of inverse pools
  bool tiles = false;
  bool swapped_tiles = false;  // of inverse and transposed convolutions

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
