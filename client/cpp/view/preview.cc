#include "client/cpp/view/preview.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace voxserve::client {
namespace {

// The class that is drawn in each cell of a grid. Square cells in a colour terminal; a character otherwise.
struct Cell {
  int class_index = -1;  // into the counts; -1 for nothing
  float strength = 0;    // 0..1, by how many points lie there
};

struct Grid {
  int width = 0, height = 0;
  std::vector<Cell> cells;
  int sensor_x = 0, sensor_y = 0;
  std::string caption;

  const Cell& at(int x, int y) const { return cells[static_cast<size_t>(y) * width + x]; }
};

// cell_aspect: a cell's height by its width.
Grid MakeGrid(const LabelledScan& scan, const std::vector<ClassCount>& counts, int width, int height,
              float cell_aspect) {
  Extent extent = DenseExtent(scan);
  const bool forward_right = extent.length() > extent.width();
  const float across = forward_right ? extent.length() : extent.width();
  const float down = forward_right ? extent.width() : extent.length();
  const float metres_per_column =
      std::max(across / static_cast<float>(width), down / (static_cast<float>(height) * cell_aspect));
  const float metres_per_row = metres_per_column * cell_aspect;
  const float middle_x = (extent.min_x + extent.max_x) / 2, middle_y = (extent.min_y + extent.max_y) / 2;
  const auto column_of = [&](float x, float y) {
    const float offset = forward_right ? x - middle_x : middle_y - y;
    return static_cast<int>(std::floor(static_cast<float>(width) / 2 + offset / metres_per_column));
  };
  const auto row_of = [&](float x, float y) {
    const float offset = forward_right ? middle_y - y : middle_x - x;
    return static_cast<int>(std::floor(static_cast<float>(height) / 2 + offset / metres_per_row));
  };

  std::map<int, int> index_of;  // class id -> place in counts
  for (size_t i = 0; i < counts.size(); ++i) index_of[counts[i].id] = static_cast<int>(i);
  Grid grid{width, height, std::vector<Cell>(static_cast<size_t>(width) * height), column_of(0, 0), row_of(0, 0), ""};
  std::vector<std::map<int, int>> points(grid.cells.size());  // per cell, of each class
  for (size_t i = 0; i < scan.labels.size(); ++i) {
    const auto index = index_of.find(scan.labels[i]);
    const float reach = 2 * std::max(across, down);
    if (index == index_of.end() || !(std::abs(scan.x[i]) < reach) || !(std::abs(scan.y[i]) < reach)) continue;
    const int column = column_of(scan.x[i], scan.y[i]), row = row_of(scan.x[i], scan.y[i]);
    if (column < 0 || row < 0 || column >= width || row >= height) continue;
    ++points[static_cast<size_t>(row) * width + column][index->second];
  }
  for (size_t i = 0; i < points.size(); ++i) {
    // A class weighs by how much of it lies here, not by points alone: else walls and roads hide all else.
    float best = 0;
    int total = 0;
    for (const auto& [index, num_points] : points[i]) {
      const float weight = static_cast<float>(num_points) / std::sqrt(static_cast<float>(counts[index].num_points));
      if (weight > best) {
        best = weight;
        grid.cells[i].class_index = index;
      }
      total += num_points;
    }
    grid.cells[i].strength = std::min(1.0f, 0.45f + 0.15f * std::log2(1.0f + static_cast<float>(total)));
  }
  grid.caption =
      absl::StrFormat("from above, forward is %s, %.0f m x %.0f m\n", forward_right ? "right" : "up",
                      static_cast<float>(width) * metres_per_column, static_cast<float>(height) * metres_per_row);
  return grid;
}

std::string ColorPreview(const Grid& grid, const std::vector<ClassCount>& counts) {
  const auto rgb_of = [&](int x, int y) -> uint32_t {
    if (x == grid.sensor_x && y == grid.sensor_y) return 0xffffff;
    const Cell& cell = grid.at(x, y);
    if (cell.class_index < 0) return 0x0b0e14;
    uint32_t rgb = 0;
    for (const int shift : {16, 8, 0}) {
      const float channel = static_cast<float>(counts[cell.class_index].color_rgb >> shift & 0xff);
      rgb |= static_cast<uint32_t>(channel * cell.strength) << shift;
    }
    return rgb;
  };
  std::string text;
  for (int y = 0; y < grid.height; y += 2) {
    uint32_t upper = UINT32_MAX, lower = UINT32_MAX;  // the colours that are set
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

// A letter of each class's name that no class before it has taken; digits when they run out.
std::vector<char> LettersOf(const std::vector<ClassCount>& counts) {
  std::vector<char> letters;
  const auto is_free = [&](char letter) { return std::find(letters.begin(), letters.end(), letter) == letters.end(); };
  for (const ClassCount& count : counts) {
    char chosen = '?';
    for (const char c : absl::StrCat(count.name, "abcdefghijklmnopqrstuvwxyz0123456789")) {
      if (absl::ascii_isalnum(static_cast<unsigned char>(c)) && is_free(c)) {
        chosen = c;
        break;
      }
    }
    letters.push_back(chosen);
  }
  return letters;
}

std::string PlainPreview(const Grid& grid, const std::vector<ClassCount>& counts) {
  const std::vector<char> letters = LettersOf(counts);
  std::string text;
  for (int y = 0; y < grid.height; ++y) {
    std::string line;
    for (int x = 0; x < grid.width; ++x) {
      const int index = grid.at(x, y).class_index;
      line += x == grid.sensor_x && y == grid.sensor_y ? '@' : index < 0 ? ' ' : letters[static_cast<size_t>(index)];
    }
    absl::StrAppend(&text, std::string(absl::StripTrailingAsciiWhitespace(line)), "\n");
  }
  absl::StrAppend(&text, "@ sensor");
  for (size_t i = 0; i < counts.size(); ++i)
    absl::StrAppend(&text, "  ", std::string(1, letters[i]), " ", counts[i].name);
  absl::StrAppend(&text, "\n");
  return text;
}

}  // namespace

std::string DrawPreview(const LabelledScan& scan, const PreviewOptions& options) {
  const std::vector<ClassCount> counts = CountClasses(scan.labels, scan.ignore_label, scan.classes);
  if (options.color) {
    const Grid grid = MakeGrid(scan, counts, options.columns, 2 * options.rows, 1);
    return absl::StrCat(ColorPreview(grid, counts), grid.caption);
  }
  const Grid grid = MakeGrid(scan, counts, options.columns, options.rows, 2);
  return absl::StrCat(PlainPreview(grid, counts), grid.caption);
}

}  // namespace voxserve::client
