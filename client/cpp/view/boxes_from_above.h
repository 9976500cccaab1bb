#pragma once

// This header prepares boxes for counts and for pictures from above. Pure functions.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/api/detections.h"
#include "voxserve/v1/inference.pb.h"

namespace voxserve::client {

// A point on the ground, in metres: x forward and y left.
struct GroundPoint {
  float x = 0;
  float y = 0;
};

// The area of the ground under a box, and its front.
struct Footprint {
  std::array<GroundPoint, 4> corners;  // front left, front right, rear right, rear left
  GroundPoint centre;
  GroundPoint front;  // the middle of the front edge

  // Returns the lines to draw: the outline, and a line from the centre to the front.
  std::array<std::pair<GroundPoint, GroundPoint>, 5> Lines() const;
};

// Returns the footprint, or nullopt for a box that reaches farther than any LiDAR sees; such a box is not drawn.
std::optional<Footprint> FootprintOf(const Box& box);

// Returns pointers into `boxes`, sorted by score, best first; boxes with equal scores keep their order.
std::vector<const Box*> SurestFirst(const std::vector<Box>& boxes);

struct DrawnBox {
  const Box* box = nullptr;
  Footprint footprint;
};

// Returns the boxes to draw, in the order of drawing. The box with the best score comes last, so it is over the others.
// The pointers are into `boxes`.
std::vector<DrawnBox> DrawnBoxes(const std::vector<Box>& boxes);

struct BoxCount {
  int id = 0;
  std::string name;
  uint32_t color_rgb = 0;
  uint64_t num_boxes = 0;
  float best_score = 0;
};

// Returns one entry for every class that has boxes, most boxes first. A class has the name that the box gives,
// otherwise the name in `classes`, otherwise "class N". Its colour is the one in `classes`, otherwise grey. counted:
// the counts of other scans, which are added.
std::vector<BoxCount> CountBoxes(const std::vector<Box>& boxes, const std::vector<v1::ClassInfo>& classes,
                                 const std::vector<BoxCount>& counted = {});

// Returns the name that CountBoxes gives to a box's class.
std::string NameOf(const Box& box, const std::vector<v1::ClassInfo>& classes);
// Returns the colour 0xRRGGBB that CountBoxes gives to a box's class.
uint32_t RgbOf(const Box& box, const std::vector<v1::ClassInfo>& classes);

}  // namespace voxserve::client
