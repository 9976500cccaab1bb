#include "engine/base/row_step.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"

namespace voxserve {
namespace {

using Wide = unsigned __int128;  // holds products of two 64-bit sizes without overflow

template <typename... Args>
absl::Status BadLayout(const Args&... args) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat(args...)), error_reason::kBadLayout);
}

std::string ToString(Wide value) {
  std::string digits;
  do {
    digits.insert(digits.begin(), static_cast<char>('0' + static_cast<int>(value % 10)));
    value /= 10;
  } while (value != 0);
  return digits;
}

}  // namespace

absl::StatusOr<uint64_t> RowStepOf(const RowSizes& sizes) {
  const auto& [num_points, height, point_step, row_step, num_bytes] = sizes;
  const uint64_t rows = std::max<uint64_t>(height, 1);
  if (num_points % rows != 0) return BadLayout("height ", height, " does not divide num_points ", num_points);
  if (num_points > 0 && point_step == 0) return BadLayout("point_step is 0 for ", num_points, " points");
  const Wide packed = Wide{num_points} * point_step;
  const Wide row_bytes = Wide{num_points / rows} * point_step;
  if (num_bytes == packed) return static_cast<uint64_t>(row_bytes);
  const Wide padded = Wide{rows} * row_step;
  const bool has_padding =
      num_points > 0 && row_step > row_bytes && (rows > 1 || row_step < row_bytes + Wide{point_step});
  if (has_padding && (num_bytes == padded || num_bytes == padded - row_step + row_bytes)) return row_step;
  return BadLayout("data has ", num_bytes, " bytes, but ", num_points, " points of ", point_step, " bytes",
                   rows > 1 ? absl::StrCat(" in ", rows, " rows") : "", " take ", ToString(packed),
                   has_padding ? absl::StrCat(", or ", ToString(padded), " with row_step ", row_step) : "");
}

}  // namespace voxserve
