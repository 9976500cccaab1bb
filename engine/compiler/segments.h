#pragma once

// In which part of a network's run each level is made and each layer computed (program.h): one part for most networks,
// one more behind every prune whose scores decide about the sites of what follows.

#include <vector>

#include "engine/compiler/layers.h"
#include "engine/compiler/program.h"

namespace voxserve {

class Segments {
 public:
  // Sets Layer::segment. A level is made in the segment of its parents, or behind that of the scores that decide about
  // it; a layer runs where its level and its inputs are there.
  explicit Segments(Layers& layers);

  int size() const { return size_; }
  int OfLevel(int level) const { return level < 0 ? 0 : of_level_[static_cast<size_t>(level)]; }

  // Who makes what of the program; rulebooks and levels are known by now.
  void Fill(const std::vector<int>& sample_levels, Program& program) const;

 private:
  std::vector<int> of_level_;
  int size_ = 1;
};

}  // namespace voxserve
