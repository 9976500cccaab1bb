#include "client/cpp/io/box_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/cpp/io/file.h"
#include "client/cpp/io/npy_header.h"

namespace voxserve::client {
namespace {

struct Number {
  const char* name;
  float Box::*value;
};
constexpr std::array<Number, 10> kNumbers = {{{"score", &Box::score},
                                              {"x", &Box::x},
                                              {"y", &Box::y},
                                              {"z", &Box::z},
                                              {"length", &Box::length},
                                              {"width", &Box::width},
                                              {"height", &Box::height},
                                              {"yaw", &Box::yaw},
                                              {"velocity_x", &Box::velocity_x},
                                              {"velocity_y", &Box::velocity_y}}};

bool HaveQueries(const std::vector<Box>& boxes) {
  return std::any_of(boxes.begin(), boxes.end(), [](const Box& box) { return box.query.has_value(); });
}
int32_t QueryOf(const Box& box) { return box.query ? static_cast<int32_t>(*box.query) : -1; }

// Returns the shortest decimal number that converts back to this float32.
std::string Decimal(float value) {
  char text[32];
  return std::string(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}

// Quotes names that contain commas, quotes or line ends, as RFC 4180 requires.
std::string CsvText(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

std::string ToCsv(const std::vector<Box>& boxes) {
  std::string text = "class_id,class_name";
  for (const Number& number : kNumbers) absl::StrAppend(&text, ",", number.name);
  const bool have_queries = HaveQueries(boxes);
  absl::StrAppend(&text, have_queries ? ",query\n" : "\n");
  for (const Box& box : boxes) {
    absl::StrAppend(&text, box.class_id, ",", CsvText(box.class_name));
    for (const Number& number : kNumbers) absl::StrAppend(&text, ",", Decimal(box.*number.value));
    if (have_queries) absl::StrAppend(&text, ",", QueryOf(box));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string ToNpy(const std::vector<Box>& boxes) {
  std::string dtype = "[('class_id', '<u4')";
  for (const Number& number : kNumbers) absl::StrAppend(&dtype, ", ('", number.name, "', '<f4')");
  const bool have_queries = HaveQueries(boxes);
  if (have_queries) absl::StrAppend(&dtype, ", ('query', '<i4')");
  std::string contents = MakeNpyHeader(absl::StrCat(dtype, "]"), {boxes.size()});
  for (const Box& box : boxes) {
    contents.append(reinterpret_cast<const char*>(&box.class_id), sizeof(box.class_id));
    for (const Number& number : kNumbers) {
      contents.append(reinterpret_cast<const char*>(&(box.*number.value)), sizeof(float));
    }
    const int32_t query = QueryOf(box);
    if (have_queries) contents.append(reinterpret_cast<const char*>(&query), sizeof(query));
  }
  return contents;
}

}  // namespace

bool IsBoxFile(const std::string& path) {
  return absl::EndsWithIgnoreCase(path, ".json") || absl::EndsWithIgnoreCase(path, ".csv") ||
         absl::EndsWithIgnoreCase(path, ".npy");
}

nlohmann::ordered_json JsonOf(const std::vector<Box>& boxes) {
  auto list = nlohmann::ordered_json::array();
  const bool have_queries = HaveQueries(boxes);
  for (const Box& box : boxes) {
    nlohmann::ordered_json& one =
        list.emplace_back(nlohmann::ordered_json{{"class_id", box.class_id}, {"class_name", box.class_name}});
    for (const Number& number : kNumbers) one[number.name] = std::stod(Decimal(box.*number.value));
    if (have_queries) one["query"] = QueryOf(box);
  }
  return list;
}

absl::Status WriteBoxes(const std::string& path, const std::vector<Box>& boxes) {
  if (absl::EndsWithIgnoreCase(path, ".csv")) return WriteFile(path, ToCsv(boxes));
  if (absl::EndsWithIgnoreCase(path, ".npy")) return WriteFile(path, ToNpy(boxes));
  if (absl::EndsWithIgnoreCase(path, ".json")) {
    const auto replaced = nlohmann::ordered_json::error_handler_t::replace;  // names need not be UTF-8
    return WriteFile(path, absl::StrCat(JsonOf(boxes).dump(1, ' ', false, replaced), "\n"));
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": boxes are written as .json, .csv or .npy"));
}

}  // namespace voxserve::client
