#pragma once

// Formats labelled scans, and scans with boxes, for people and programs.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/api/client.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/view/annotated_scan.h"

namespace voxserve::client {

// How many labels agree with the truth, the labels given by people.
struct Agreement {
  struct OfClass {
    std::string name;
    uint64_t num_points = 0;  // points of this class in the truth
    uint64_t num_agreeing = 0;
  };
  std::string file;
  OfClass total;
  std::map<int, OfClass> by_class;
  uint64_t num_without = 0;  // points without a label in the truth, or with a class that the model does not know

  void Add(const Agreement& other);
};

// Compares labels with the truth, one value per label. 255, the ignore label and ids of no class count as unlabelled.
Agreement Compare(const std::vector<uint16_t>& labels, const std::vector<uint16_t>& truth, uint16_t ignore_label,
                  const std::vector<v1::ClassInfo>& classes);

// The boxes that a second model found in a scan whose labels are of the first one.
struct BoxesOver {
  Answer result;
  std::vector<Box> boxes;
  std::vector<v1::ClassInfo> classes;
};

// The result of one scan, or the sum of several.
struct ScanReport {
  std::string file;
  Answer result;
  uint64_t num_points = 0;
  std::vector<ClassCount> classes;  // classes of the labels, most points first
  std::optional<Agreement> agreement;
  std::optional<std::vector<Box>> boxes;  // set for a model with boxes, instead of labels
  std::optional<BoxesOver> over;          // besides the labels
  bool has_tensors = false;               // the result has tensors, instead of labels
  std::vector<std::string> written;       // names of files
};

// Returns the table of classes, the agreement or boxes, the times and the files.
std::string FormatReport(const ScanReport& report, const std::vector<v1::ClassInfo>& classes, const Terminal& terminal);

// Returns only the classes and the agreement, for many scans.
std::string FormatClasses(const std::vector<ClassCount>& counts, const std::optional<Agreement>& agreement,
                          uint64_t num_points, const std::vector<v1::ClassInfo>& classes, const Terminal& terminal);

// Returns one line of JSON.
std::string FormatJson(const ScanReport& report);
std::string FormatJsonError(const std::string& file, const absl::Status& status);

// Returns a text such as "12.3 ms" or "1.24 s".
std::string FormatTime(absl::Duration duration);

// Returns the `share` of a full bar, in eighths of characters if the terminal can show them.
std::string Bar(double share, const Terminal& terminal);

// Returns a square in the class's colour and a space; "" without colours.
std::string Swatch(uint32_t color_rgb, const Terminal& terminal);

}  // namespace voxserve::client
