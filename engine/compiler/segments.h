#pragma once

// Segments divides a network's run into parts (program.h), and says in which of them each level and layer is computed.
// Most networks have one segment. There is one more behind every prune by score, since later levels depend on it.

#include <vector>

#include "engine/compiler/layers.h"
#include "engine/compiler/program.h"

namespace voxserve {

class Segments {
 public:
  // Sets Layer::segment. A level is made in the segment of its parents, or in the one after that of the scores that
  // decide about it. A layer runs in the first segment in which its level and inputs exist.
  explicit Segments(Layers& layers);

  int size() const { return size_; }
  int OfLevel(int level) const { return level < 0 ? 0 : of_level_[static_cast<size_t>(level)]; }

  // Fills the program's segments. The program's levels and rulebooks must be complete.
  void Fill(const std::vector<int>& sample_levels, Program& program) const;

 private:
  std::vector<int> of_level_;
  int size_ = 1;
};

}  // namespace voxserve
