#include "client/cpp/io/columns.h"

#include <cstring>
#include <numeric>

namespace voxserve::client {

std::string InterleaveColumns(absl::string_view columns, const std::vector<uint32_t>& widths, uint64_t num_points) {
  const uint64_t step = std::accumulate(widths.begin(), widths.end(), uint64_t{0});
  std::string rows(num_points * step, '\0');
  const char* column = columns.data();
  uint64_t offset = 0;
  for (const uint32_t width : widths) {
    char* out = rows.data() + offset;
    for (uint64_t i = 0; i < num_points; ++i, out += step, column += width) std::memcpy(out, column, width);
    offset += width;
  }
  return rows;
}

}  // namespace voxserve::client
