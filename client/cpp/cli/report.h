#pragma once

// What a person or a program is told about labelled scans, and those in which boxes were found.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/api/client.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/view/annotated_scan.h"

namespace voxserve::client {

// How far labels agree with those of people.
struct Agreement {
  struct OfClass {
    std::string name;
    uint64_t num_points = 0;  // that people gave this class
    uint64_t num_agreeing = 0;
  };
  std::string file;
  OfClass total;
  std::map<int, OfClass> by_class;
  uint64_t num_without = 0;  // points that people did not label, or with a class that the model does not know

  void Add(const Agreement& other);
};

// Truth's 255, the ignore label and ids that are none of the classes count as unlabelled. One truth a label.
Agreement Compare(const std::vector<uint16_t>& labels, const std::vector<uint16_t>& truth, uint16_t ignore_label,
                  const std::vector<v1::ClassInfo>& classes);

// One scan, or several added up.
struct ScanReport {
  std::string file;
  Answer result;
  uint64_t num_points = 0;
  std::vector<ClassCount> classes;  // of labels, most points first
  std::optional<Agreement> agreement;
  std::optional<std::vector<Box>> boxes;  // of a model with boxes, in place of labels
  bool has_tensors = false;               // those of result, in place of labels
  std::vector<std::string> written;       // files
};

// The table of classes, agreement or boxes, times and files.
std::string FormatReport(const ScanReport& report, const std::vector<v1::ClassInfo>& classes, const Terminal& terminal);

// The table of classes and agreement alone, of many scans.
std::string FormatClasses(const std::vector<ClassCount>& counts, const std::optional<Agreement>& agreement,
                          uint64_t num_points, const std::vector<v1::ClassInfo>& classes, const Terminal& terminal);

// One line of JSON.
std::string FormatJson(const ScanReport& report);
std::string FormatJsonError(const std::string& file, const absl::Status& status);

// "12.3 ms", "1.24 s"
std::string FormatTime(absl::Duration duration);

// `share` of a bar, in eighths of characters where the terminal can.
std::string Bar(double share, const Terminal& terminal);

// A square of the class's colour and a space; "" without colours.
std::string Swatch(uint32_t color_rgb, const Terminal& terminal);

}  // namespace voxserve::client
