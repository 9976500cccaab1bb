#pragma once

// Segments divides a network's run into parts (ProgramSegment in program.h), and says in which part each level is made
// and each layer runs. Most networks have one segment. A prune by score needs one more segment, since the levels after
// the prune depend on the scores. Prunes that do not depend on each other share it.

#include <vector>

#include "engine/compiler/layers.h"
#include "engine/compiler/program.h"

namespace voxserve {

class Segments {
 public:
  // Sets Layer::segment. A level is made in the first segment in which its parents exist and, if scores decide which
  // sites it keeps, the scores were computed in an earlier segment. A layer runs in the first segment in which its
  // level and inputs exist.
  explicit Segments(Layers& layers);

  int size() const { return size_; }
  // Returns the segment in which a level is made; 0 for kSampleLevel and kPointLevel.
  int OfLevel(int level) const { return level < 0 ? 0 : of_level_[static_cast<size_t>(level)]; }

  // Fills the lists of levels, rulebooks and orders in the program's segments. The program's rulebooks and orders must
  // be complete. (The level that decides an order's depth is made no later than the order's level.)
  // sample_levels: the levels on which steps read where each sample's rows begin.
  void Fill(const std::vector<int>& sample_levels, Program& program) const;

 private:
  std::vector<int> of_level_;
  int size_ = 1;
};

}  // namespace voxserve
