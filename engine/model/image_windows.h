#pragma once

// FindImageWindows finds, for the images of a graph, the positions of sites on which each of their positions depends.
// With them a convolution leaves out what is the same as in an empty image (kernels/image/sites/active_boxes.h).

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/model/graph.h"
#include "kernels/image/sites/active_boxes.h"

namespace voxserve {

struct AxisWindow {
  kernels::SourceWindow source;
  // Where there are no sites, values repeat after so many positions: a transposed convolution has weights of its own
  // for each of them.
  int32_t period = 1;

  bool operator==(const AxisWindow&) const = default;
};

// The image of a to_dense node (or to_bev), and the windows of it on which the positions of another image depend, on
// rows and columns.
struct ImageWindows {
  int source = -1;  // the node
  std::array<AxisWindow, 2> axes;
  bool is_source = false;  // the image is the source's own

  bool operator==(const ImageWindows&) const = default;

  // Returns the windows of a convolution or pool of the image; nullopt if they are not known, or if the period does not
  // fit boxes.
  std::optional<ImageWindows> After(const kernels::Conv2dGeometry& geometry) const;
  // Returns the windows of what depends on both images; nullopt if there are none.
  std::optional<ImageWindows> With(const ImageWindows& other) const;
  // Returns true if the windows are at most an eighth of the source's image on each axis. Larger ones reach sites or
  // the border from nearly everywhere.
  bool AreSmallIn(const GridShape& source_shape) const;
};

// Returns the windows by node. A node has none if it is no image, if it depends on something else than the sites of one
// to_dense, or behind operators whose windows are not known.
std::vector<std::optional<ImageWindows>> FindImageWindows(const Graph& graph);

}  // namespace voxserve
