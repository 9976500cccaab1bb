#include "deploy/calibrate/scales.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/quoted.h"
#include "engine/base/regular_file.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace voxserve::calibrate {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{8} << 20;
constexpr size_t kMostNames = 5;  // in an error

const std::string& NameOf(const Graph& graph, int node) { return graph.nodes[static_cast<size_t>(node)].name; }

std::string NamesText(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (size_t i = 0; i < std::min(names.size(), kMostNames); ++i) quoted.push_back(Quoted(names[i]));
  if (names.size() > kMostNames) quoted.push_back(absl::StrCat(names.size() - kMostNames, " more"));
  return absl::StrJoin(quoted, ", ");
}

// Reads a flat JSON object. Returns the reason if the text is something else. Lists and objects within it are not kept,
// so that their nesting takes little memory.
std::optional<std::string> ParseNumbers(const std::string& text, std::vector<std::pair<std::string, double>>* numbers) {
  using Event = nlohmann::json::parse_event_t;
  std::string wrong, key;
  const auto refuse = [&](int depth) {
    if (!wrong.empty()) return;
    wrong = depth == 0 ? "it is no object of names and numbers" : absl::StrCat(Quoted(key), " is no number");
  };
  const auto visit = [&](int depth, Event event, const nlohmann::json& parsed) {
    switch (event) {
      case Event::object_start:
        if (depth > 0) refuse(depth);
        return depth == 0;
      case Event::array_start:
        refuse(depth);
        return false;
      case Event::key:
        if (depth == 1) key = parsed.get<std::string>();
        return true;
      case Event::value:
        if (depth == 1 && parsed.is_number()) {
          numbers->emplace_back(key, parsed.get<double>());
        } else {
          refuse(depth);
        }
        return false;
      case Event::object_end:
      case Event::array_end:
        break;
    }
    return true;
  };
  const nlohmann::json parsed = nlohmann::json::parse(text, visit, /*allow_exceptions=*/false);
  if (wrong.empty() && parsed.is_discarded()) wrong = "it is no JSON";
  if (wrong.empty()) return std::nullopt;
  return wrong;
}

}  // namespace

ValueCounts::ValueCounts(const Graph& graph, const Int8Candidates& candidates) : graph_(graph) {
  for (const Int8Value& value : candidates.values) is_non_negative_[value.node] = value.is_non_negative;
}

absl::Status ValueCounts::Add(int node, const kernels::ConstRows& rows, kernels::ThreadPool& pool) {
  if (!is_non_negative_.contains(node)) return absl::OkStatus();
  ValueHistogram& counts = counts_[node];
  const int64_t num_not_finite = counts.num_not_finite();
  counts.Add(rows, pool);
  if (const int64_t added = counts.num_not_finite() - num_not_finite; added > 0) {
    return absl::InvalidArgumentError(absl::StrCat(added, " of ", rows.capacity * rows.channels, " values of ",
                                                   Quoted(NameOf(graph_, node)), " are NaN or infinite"));
  }
  if (is_non_negative_[node] && counts.has_negative()) {
    return absl::InternalError(absl::StrCat("the values of ", Quoted(NameOf(graph_, node)), " are negative"));
  }
  return absl::OkStatus();
}

Scales ValueCounts::Choose(std::vector<std::string>* warnings) const {
  Scales scales;
  for (const auto& [node, is_non_negative] : is_non_negative_) {
    const auto counts = counts_.find(node);
    const std::string& name = NameOf(graph_, node);
    if (counts == counts_.end() || counts->second.num_values() == 0) {
      warnings->push_back(absl::StrCat("no scan reaches ", Quoted(name), ": the layers that read it stay in float"));
    } else if (counts->second.largest() == 0) {
      warnings->push_back(
          absl::StrCat("all values of ", Quoted(name), " are 0 in these scans: the layers that read it stay in float"));
    } else {
      scales[name] = LeastErrorScale(counts->second, LargestInteger(is_non_negative));
    }
  }
  return scales;
}

std::map<std::string, float> ValueCounts::Largest() const {
  std::map<std::string, float> largest;
  for (const auto& [node, counts] : counts_) largest[NameOf(graph_, node)] = counts.largest();
  return largest;
}

absl::StatusOr<Scales> ReadScales(const std::string& file, const Graph& graph, const Int8Candidates& candidates,
                                  const std::set<std::string>& needed) {
  const absl::StatusOr<std::string> text = ReadRegularFile(file, kMaxFileBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat(file, ": cannot be read (", text.status().message(), ")"));
  }
  const auto bad = [&](const auto&... why) { return absl::InvalidArgumentError(absl::StrCat(file, ": ", why...)); };
  std::vector<std::pair<std::string, double>> numbers;
  if (const auto wrong = ParseNumbers(*text, &numbers)) return bad(*wrong);
  std::set<std::string> known;
  for (const Int8Value& value : candidates.values) known.insert(NameOf(graph, value.node));
  Scales scales;
  std::vector<std::string> unknown;
  for (const auto& [name, number] : numbers) {
    const auto scale = static_cast<float>(number);
    if (!known.contains(name)) {
      unknown.push_back(name);
    } else if (!std::isnormal(scale) || scale < 0) {
      return bad("the scale of ", Quoted(name), " is ", number, "; it must be positive and finite");
    } else if (!scales.emplace(name, scale).second) {
      return bad(Quoted(name), " appears twice");
    }
  }
  if (!unknown.empty()) {
    return bad("it names ", NamesText(unknown), ", but the model has no such value that 8 bits can store: are these ",
               "scales of another model?");
  }
  std::vector<std::string> missing;
  for (const std::string& name : needed) {
    if (!scales.contains(name)) missing.push_back(name);
  }
  if (!missing.empty()) return bad("it lacks a scale for ", NamesText(missing));
  return scales;
}

}  // namespace voxserve::calibrate
