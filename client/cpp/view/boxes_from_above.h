#pragma once

// Boxes, ready to be counted and seen from above.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/api/detections.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

// Metres, x forward and y left.
struct GroundPoint {
  float x = 0;
  float y = 0;
};

// What a box covers of the ground, and where its front is.
struct Footprint {
  std::array<GroundPoint, 4> corners;  // front left, front right, rear right, rear left
  GroundPoint centre;
  GroundPoint front;  // the middle of the front edge

  // What is drawn of it, from point to point: its outline, and a line from the middle to the front.
  std::array<std::pair<GroundPoint, GroundPoint>, 5> Lines() const;
};

// Nullopt for a box that reaches farther than any LiDAR sees: it is not drawn.
std::optional<Footprint> FootprintOf(const Box& box);

// The best score first; of equal ones, the order of the answer. Pointers into `boxes`.
std::vector<const Box*> SurestFirst(const std::vector<Box>& boxes);

struct DrawnBox {
  const Box* box = nullptr;
  Footprint footprint;
};

// What is drawn of them, the surest last, over the others.
std::vector<DrawnBox> DrawnBoxes(const std::vector<Box>& boxes);

struct BoxCount {
  int id = 0;
  std::string name;
  uint32_t color_rgb = 0;
  uint64_t num_boxes = 0;
  float best_score = 0;
};

// One entry for every class that has boxes, most boxes first. Names are the boxes' own, else those of `classes`, else
// "class N"; colours are those of `classes`, else grey. counted: what other scans have, which is added.
std::vector<BoxCount> CountBoxes(const std::vector<Box>& boxes, const std::vector<v1::ClassInfo>& classes,
                                 const std::vector<BoxCount>& counted = {});

// Of CountBoxes, of one box.
std::string NameOf(const Box& box, const std::vector<v1::ClassInfo>& classes);
uint32_t RgbOf(const Box& box, const std::vector<v1::ClassInfo>& classes);

}  // namespace voxserve::client
