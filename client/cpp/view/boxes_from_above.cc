#include "client/cpp/view/boxes_from_above.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"

namespace voxserve::client {
namespace {

constexpr uint32_t kUnlistedBoxColor = 0x808080;
constexpr float kMaxBoxRange = 300;  // in metres

const v1::ClassInfo* Find(uint32_t class_id, const std::vector<v1::ClassInfo>& classes) {
  const auto found = std::find_if(classes.begin(), classes.end(),
                                  [class_id](const v1::ClassInfo& info) { return info.id() == class_id; });
  return found == classes.end() ? nullptr : &*found;
}

}  // namespace

std::optional<Footprint> FootprintOf(const Box& box) {
  const float reach = std::max(std::abs(box.x), std::abs(box.y)) + std::abs(box.length) + std::abs(box.width);
  if (!(reach < kMaxBoxRange) || !std::isfinite(box.yaw)) return std::nullopt;
  const float cos = std::cos(box.yaw), sin = std::sin(box.yaw);
  const auto at = [&](float ahead, float left) -> GroundPoint {
    return {box.x + ahead * cos - left * sin, box.y + ahead * sin + left * cos};
  };
  const float ahead = box.length / 2, left = box.width / 2;
  return Footprint{.corners = {at(ahead, left), at(ahead, -left), at(-ahead, -left), at(-ahead, left)},
                   .centre = {box.x, box.y},
                   .front = at(ahead, 0)};
}

std::array<std::pair<GroundPoint, GroundPoint>, 5> Footprint::Lines() const {
  return {{{corners[0], corners[1]},
           {corners[1], corners[2]},
           {corners[2], corners[3]},
           {corners[3], corners[0]},
           {centre, front}}};
}

std::vector<const Box*> SurestFirst(const std::vector<Box>& boxes) {
  std::vector<const Box*> sorted;
  for (const Box& box : boxes) sorted.push_back(&box);
  std::stable_sort(sorted.begin(), sorted.end(), [](const Box* a, const Box* b) { return a->score > b->score; });
  return sorted;
}

std::vector<DrawnBox> DrawnBoxes(const std::vector<Box>& boxes) {
  std::vector<DrawnBox> drawn;
  for (const Box* box : SurestFirst(boxes)) {
    if (const std::optional<Footprint> footprint = FootprintOf(*box)) drawn.push_back({box, *footprint});
  }
  std::reverse(drawn.begin(), drawn.end());
  return drawn;
}

std::string NameOf(const Box& box, const std::vector<v1::ClassInfo>& classes) {
  if (!box.class_name.empty()) return box.class_name;
  const v1::ClassInfo* info = Find(box.class_id, classes);
  return info != nullptr && !info->name().empty() ? info->name() : absl::StrCat("class ", box.class_id);
}

uint32_t RgbOf(const Box& box, const std::vector<v1::ClassInfo>& classes) {
  const v1::ClassInfo* info = Find(box.class_id, classes);
  return info != nullptr ? info->color_rgb() : kUnlistedBoxColor;
}

std::vector<BoxCount> CountBoxes(const std::vector<Box>& boxes, const std::vector<v1::ClassInfo>& classes,
                                 const std::vector<BoxCount>& counted) {
  std::map<uint32_t, BoxCount> by_id;
  for (const BoxCount& count : counted) by_id[static_cast<uint32_t>(count.id)] = count;
  for (const Box& box : boxes) {
    BoxCount& count = by_id[box.class_id];
    if (count.num_boxes++ == 0) {
      count.id = static_cast<int>(box.class_id);
      count.name = NameOf(box, classes);
      count.color_rgb = RgbOf(box, classes);
    }
    count.best_score = std::max(count.best_score, box.score);
  }
  std::vector<BoxCount> counts;
  for (auto& [id, count] : by_id) counts.push_back(std::move(count));
  std::stable_sort(counts.begin(), counts.end(),
                   [](const BoxCount& a, const BoxCount& b) { return a.num_boxes > b.num_boxes; });
  return counts;
}

}  // namespace voxserve::client
