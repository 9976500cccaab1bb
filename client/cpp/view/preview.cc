#include "client/cpp/view/preview.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/view/boxes_from_above.h"

namespace voxserve::client {
namespace {

constexpr int kGroundId = -1;
constexpr uint32_t kGroundRgb = 0x6b7078;

// A kind of drawn thing: a class of points or boxes, or points without labels.
struct Kind {
  int id = 0;  // the class id, or kGroundId for points without labels under boxes
  std::string name;
  uint32_t color_rgb = 0;
  double num_points = 0;
  bool is_box = false;
};

std::vector<Kind> KindsOf(const AnnotatedScan& scan) {
  std::vector<Kind> kinds;
  for (const ClassCount& count : CountClasses(scan.labels, scan.ignore_label, scan.classes)) {
    kinds.push_back({count.id, count.name, count.color_rgb, static_cast<double>(count.num_points)});
  }
  if (!scan.boxes) return kinds;
  for (const BoxCount& count : CountBoxes(*scan.boxes, scan.box_classes)) {
    const std::string name = absl::StrCat(count.name, scan.labels.empty() ? "" : " box");
    kinds.push_back({.id = count.id, .name = name, .color_rgb = count.color_rgb, .is_box = true});
  }
  if (!scan.x.empty() && scan.labels.empty())
    kinds.push_back({kGroundId, "points", kGroundRgb, static_cast<double>(scan.x.size())});
  return kinds;
}

// The kind drawn in each cell of a grid. A colour terminal has square cells; otherwise a cell is a character.
struct Cell {
  int kind = -1;       // -1 for nothing
  float strength = 0;  // 0..1, from the number of points
};

struct Grid {
  int width = 0, height = 0;
  std::vector<Cell> cells;
  int sensor_x = 0, sensor_y = 0;
  std::string caption;

  const Cell& at(int x, int y) const { return cells[static_cast<size_t>(y) * width + x]; }
};

// Projects the ground to cells.
struct PreviewProjection {
  bool forward_right = false;
  float middle_x = 0, middle_y = 0;
  float metres_per_column = 1, metres_per_row = 1;
  float width = 0, height = 0;

  float column(float x, float y) const {
    return width / 2 + (forward_right ? x - middle_x : middle_y - y) / metres_per_column;
  }
  float row(float x, float y) const {
    return height / 2 + (forward_right ? middle_y - y : middle_x - x) / metres_per_row;
  }
};

Cell* CellAt(const PreviewProjection& projection, float x, float y, Grid* grid) {
  const float column = std::floor(projection.column(x, y)), row = std::floor(projection.row(x, y));
  const bool is_inside =
      column >= 0 && row >= 0 && column < projection.width && row < projection.height;  // false for NaN
  if (!is_inside) return nullptr;
  return &grid->cells[static_cast<size_t>(row) * grid->width + static_cast<size_t>(column)];
}

// A class weighs by the share of its points in a cell, not by their number: otherwise walls and roads would hide the
// rest.
void DrawPointsInPreview(const AnnotatedScan& scan, const std::vector<Kind>& kinds, const PreviewProjection& projection,
                         Grid* grid) {
  std::map<int, int> kind_of;  // by class id
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (!kinds[i].is_box) kind_of[kinds[i].id] = static_cast<int>(i);
  }
  std::vector<std::map<int, int>> points(grid->cells.size());  // points by cell and kind
  for (size_t i = 0; i < scan.x.size(); ++i) {
    const auto kind = kind_of.find(scan.labels.empty() ? kGroundId : scan.labels[i]);
    if (kind == kind_of.end()) continue;
    const Cell* cell = CellAt(projection, scan.x[i], scan.y[i], grid);
    if (cell != nullptr) ++points[cell - grid->cells.data()][kind->second];
  }
  for (size_t i = 0; i < points.size(); ++i) {
    double best = 0;
    int total = 0;
    for (const auto& [kind, num_points] : points[i]) {
      const double weight = num_points / std::sqrt(kinds[kind].num_points);
      if (weight > best) {
        best = weight;
        grid->cells[i].kind = kind;
      }
      total += num_points;
    }
    grid->cells[i].strength = std::min(1.0f, 0.45f + 0.15f * std::log2(1.0f + static_cast<float>(total)));
  }
}

void DrawBoxesInPreview(const AnnotatedScan& scan, const std::vector<Kind>& kinds, const PreviewProjection& projection,
                        Grid* grid) {
  if (!scan.boxes) return;
  for (const auto& [box, footprint] : DrawnBoxes(*scan.boxes)) {
    const auto is_its = [id = static_cast<int>(box->class_id)](const Kind& kind) {
      return kind.is_box && kind.id == id;
    };
    const auto kind = static_cast<int>(std::find_if(kinds.begin(), kinds.end(), is_its) - kinds.begin());
    for (const auto& [from, to] : footprint.Lines()) {
      const float step = std::min(projection.metres_per_column, projection.metres_per_row) / 2;
      const int num_steps = static_cast<int>(std::hypot(to.x - from.x, to.y - from.y) / step) + 1;
      for (int i = 0; i <= num_steps; ++i) {
        const float t = static_cast<float>(i) / static_cast<float>(num_steps);
        Cell* cell = CellAt(projection, from.x + t * (to.x - from.x), from.y + t * (to.y - from.y), grid);
        if (cell != nullptr) *cell = {.kind = kind, .strength = 1};
      }
    }
  }
}

// cell_aspect: a cell's height divided by its width.
Grid MakeGrid(const AnnotatedScan& scan, const std::vector<Kind>& kinds, int width, int height, float cell_aspect) {
  const Extent extent = DenseExtent(scan);
  PreviewProjection projection{.forward_right = extent.length() > extent.width(),
                               .middle_x = (extent.min_x + extent.max_x) / 2,
                               .middle_y = (extent.min_y + extent.max_y) / 2,
                               .width = static_cast<float>(width),
                               .height = static_cast<float>(height)};
  const float across = projection.forward_right ? extent.length() : extent.width();
  const float down = projection.forward_right ? extent.width() : extent.length();
  projection.metres_per_column = std::max(across / projection.width, down / (projection.height * cell_aspect));
  projection.metres_per_row = projection.metres_per_column * cell_aspect;
  Grid grid{width, height, std::vector<Cell>(static_cast<size_t>(width) * height), -1, -1, ""};
  if (const Cell* sensor = CellAt(projection, 0, 0, &grid)) {
    const auto place = static_cast<int>(sensor - grid.cells.data());
    grid.sensor_x = place % width;
    grid.sensor_y = place / width;
  }
  DrawPointsInPreview(scan, kinds, projection, &grid);
  DrawBoxesInPreview(scan, kinds, projection, &grid);
  grid.caption =
      absl::StrFormat("from above, forward is %s, %.0f m x %.0f m\n", projection.forward_right ? "right" : "up",
                      projection.width * projection.metres_per_column, projection.height * projection.metres_per_row);
  return grid;
}

std::string ColorPreview(const Grid& grid, const std::vector<Kind>& kinds) {
  const auto rgb_of = [&](int x, int y) -> uint32_t {
    if (x == grid.sensor_x && y == grid.sensor_y) return 0xffffff;
    const Cell& cell = grid.at(x, y);
    if (cell.kind < 0) return 0x0b0e14;
    uint32_t rgb = 0;
    for (const int shift : {16, 8, 0}) {
      const float channel = static_cast<float>(kinds[cell.kind].color_rgb >> shift & 0xff);
      rgb |= static_cast<uint32_t>(channel * cell.strength) << shift;
    }
    return rgb;
  };
  std::string text;
  for (int y = 0; y < grid.height; y += 2) {
    uint32_t upper = UINT32_MAX, lower = UINT32_MAX;  // colours of the terminal's current state
    for (int x = 0; x < grid.width; ++x) {
      const uint32_t top = rgb_of(x, y), bottom = y + 1 < grid.height ? rgb_of(x, y + 1) : 0x0b0e14u;
      if (top != upper) absl::StrAppendFormat(&text, "\x1b[38;2;%d;%d;%dm", top >> 16, top >> 8 & 0xff, top & 0xff);
      if (bottom != lower) {
        absl::StrAppendFormat(&text, "\x1b[48;2;%d;%d;%dm", bottom >> 16, bottom >> 8 & 0xff, bottom & 0xff);
      }
      upper = top;
      lower = bottom;
      absl::StrAppend(&text, "\u2580");
    }
    absl::StrAppend(&text, "\x1b[0m\n");
  }
  return text;
}

// Returns a letter of each kind's name that no earlier kind uses; digits if none is left. The ground is a full stop.
std::vector<char> LettersOf(const std::vector<Kind>& kinds) {
  std::vector<char> letters;
  const auto is_free = [&](char letter) { return std::find(letters.begin(), letters.end(), letter) == letters.end(); };
  for (const Kind& kind : kinds) {
    char chosen = kind.id == kGroundId ? '.' : '?';
    for (const char c : kind.id == kGroundId ? "" : absl::StrCat(kind.name, "abcdefghijklmnopqrstuvwxyz0123456789")) {
      if (absl::ascii_isalnum(static_cast<unsigned char>(c)) && is_free(c)) {
        chosen = c;
        break;
      }
    }
    letters.push_back(chosen);
  }
  return letters;
}

std::string PlainPreview(const Grid& grid, const std::vector<Kind>& kinds) {
  const std::vector<char> letters = LettersOf(kinds);
  std::string text;
  for (int y = 0; y < grid.height; ++y) {
    std::string line;
    for (int x = 0; x < grid.width; ++x) {
      const int index = grid.at(x, y).kind;
      line += x == grid.sensor_x && y == grid.sensor_y ? '@' : index < 0 ? ' ' : letters[static_cast<size_t>(index)];
    }
    absl::StrAppend(&text, std::string(absl::StripTrailingAsciiWhitespace(line)), "\n");
  }
  absl::StrAppend(&text, "@ sensor");
  for (size_t i = 0; i < kinds.size(); ++i)
    absl::StrAppend(&text, "  ", std::string(1, letters[i]), " ", kinds[i].name);
  absl::StrAppend(&text, "\n");
  return text;
}

}  // namespace

std::string DrawPreview(const AnnotatedScan& scan, const PreviewOptions& options) {
  const std::vector<Kind> kinds = KindsOf(scan);
  if (options.color) {
    const Grid grid = MakeGrid(scan, kinds, options.columns, 2 * options.rows, 1);
    return absl::StrCat(ColorPreview(grid, kinds), grid.caption);
  }
  const Grid grid = MakeGrid(scan, kinds, options.columns, options.rows, 2);
  return absl::StrCat(PlainPreview(grid, kinds), grid.caption);
}

}  // namespace voxserve::client
