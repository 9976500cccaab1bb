#include "engine/compiler/segments.h"

#include <algorithm>

namespace voxserve {

Segments::Segments(Layers& layers) {
  const std::vector<CoordinateLevel>& levels = layers.graph().levels.levels();
  of_level_.assign(levels.size(), 0);
  // A level is placed before the layers on it, and after the layers with the scores that decide about it.
  size_t num_placed = 1;
  const auto place_levels = [&](size_t end) {
    for (; num_placed < end; ++num_placed) {
      const CoordinateLevel& level = levels[num_placed];
      int& segment = of_level_[num_placed];
      segment = std::max(OfLevel(level.parent), OfLevel(level.united_with));
      if (const int score = layers.ScoreOf(level); score >= 0) {
        segment = std::max(segment, layers.At(score).segment + 1);
      }
      size_ = std::max(size_, segment + 1);
    }
  };
  for (int i = 0; i < layers.size(); ++i) {
    Layer& layer = layers.At(i);
    const int level = std::max(layers.Node(layer.result_node).level, 0);
    place_levels(static_cast<size_t>(level + 1));
    layer.segment = OfLevel(level);
    for (const int input : layers.InputsOf(layer)) layer.segment = std::max(layer.segment, layers.At(input).segment);
  }
  place_levels(levels.size());
}

void Segments::Fill(const std::vector<int>& sample_levels, Program& program) const {
  const auto segment_of = [&](int level) -> ProgramSegment& {
    return program.segments[static_cast<size_t>(OfLevel(level))];
  };
  for (size_t level = 1; level < of_level_.size(); ++level) {
    segment_of(static_cast<int>(level)).levels.push_back(static_cast<int>(level));
  }
  for (size_t i = 0; i < program.rulebooks.size(); ++i) {
    const RulebookSpec& spec = program.rulebooks[i].spec;
    ProgramSegment& in = segment_of(spec.in_level);
    ProgramSegment& out = segment_of(spec.out_level);
    std::max(&in, &out)->rulebooks.push_back(static_cast<int>(i));
  }
  for (size_t i = 0; i < program.orders.size(); ++i) {
    segment_of(program.orders[i].level).orders.push_back(static_cast<int>(i));
  }
  for (const int level : sample_levels) segment_of(level).sample_levels.push_back(level);
}

}  // namespace voxserve
