#pragma once

// Boxes, ready for counts and pictures from above.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/api/detections.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

// In metres, x forward and y left.
struct GroundPoint {
  float x = 0;
  float y = 0;
};

// The area of the ground under a box, and its front.
struct Footprint {
  std::array<GroundPoint, 4> corners;  // front left, front right, rear right, rear left
  GroundPoint centre;
  GroundPoint front;  // the middle of the front edge

  // Returns the lines to draw: the outline, and a line from the middle to the front.
  std::array<std::pair<GroundPoint, GroundPoint>, 5> Lines() const;
};

// Returns nullopt for a box that reaches farther than any LiDAR sees; it is not drawn.
std::optional<Footprint> FootprintOf(const Box& box);

// Sorts by score, best first; equal scores keep the answer's order. Returns pointers into `boxes`.
std::vector<const Box*> SurestFirst(const std::vector<Box>& boxes);

struct DrawnBox {
  const Box* box = nullptr;
  Footprint footprint;
};

// Returns what to draw. The box with the best score comes last, over the others.
std::vector<DrawnBox> DrawnBoxes(const std::vector<Box>& boxes);

struct BoxCount {
  int id = 0;
  std::string name;
  uint32_t color_rgb = 0;
  uint64_t num_boxes = 0;
  float best_score = 0;
};

// Returns one entry for every class that has boxes, most boxes first. A name is the box's own, else that of `classes`,
// else "class N". A colour is that of `classes`, else grey. counted: the counts of other scans, which are added.
std::vector<BoxCount> CountBoxes(const std::vector<Box>& boxes, const std::vector<v1::ClassInfo>& classes,
                                 const std::vector<BoxCount>& counted = {});

// Returns the name that CountBoxes gives to a box's class.
std::string NameOf(const Box& box, const std::vector<v1::ClassInfo>& classes);
uint32_t RgbOf(const Box& box, const std::vector<v1::ClassInfo>& classes);

}  // namespace voxserve::client
