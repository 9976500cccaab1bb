#pragma once

// The forms in which a GPU's convolutions and pools read a rulebook.

namespace voxserve {

// What of a rulebook a batch's convolutions and pools read. Each form is made only where it is asked for.
struct RulebookForms {
  bool pairs = false;               // gather-GEMM-scatter's, either way round
  bool neighbours = false;          // fetch-on-demand's and pools'
  bool swapped_neighbours = false;  // of inverse and transposed ones

  bool operator==(const RulebookForms&) const = default;
};

}  // namespace voxserve
