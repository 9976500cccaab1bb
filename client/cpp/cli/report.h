#pragma once

// These functions format the results of scans (labels, boxes or tensors) for people and programs.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/cpp/api/client.h"
#include "client/cpp/cli/command.h"
#include "client/cpp/view/annotated_scan.h"

namespace voxserve::client {

// How many labels agree with the truth: the labels that people gave.
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

// Compares labels with the truth: labels[i] and truth[i] belong to the same point. A point whose truth is 255, the
// ignore label or no class's id counts as unlabelled.
Agreement Compare(const std::vector<uint16_t>& labels, const std::vector<uint16_t>& truth, uint16_t ignore_label,
                  const std::vector<v1::ClassInfo>& classes);

// The boxes that a second model (--boxes_model) found in a scan that a first model labelled.
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
  std::vector<ClassCount> classes;  // the classes that the labels have, the one with the most points first
  std::optional<Agreement> agreement;
  bool has_labels = false;                // the result has labels; `classes` counts them
  std::optional<std::vector<Box>> boxes;  // the model's boxes, alone or beside its labels
  std::optional<BoxesOver> over;          // a second model's boxes, in addition to the first model's labels
  std::vector<std::string> written;       // the output files
  // A result with neither labels nor boxes has tensors.
};

// Returns a report in several lines. First comes the table of the classes, with their agreement with the true labels if
// the report has one, then the table of the boxes, or the table of the tensors; then the times of the stages and the
// written files.
std::string FormatReport(const ScanReport& report, const std::vector<v1::ClassInfo>& classes, const Terminal& terminal);

// Returns only the table of the classes with their agreement, for the sum of many scans.
std::string FormatClasses(const std::vector<ClassCount>& counts, const std::optional<Agreement>& agreement,
                          uint64_t num_points, const std::vector<v1::ClassInfo>& classes, const Terminal& terminal);

// Return one line of JSON.
std::string FormatJson(const ScanReport& report);
std::string FormatJsonError(const std::string& file, const absl::Status& status);

// Returns a text such as "12.3 ms" or "1.24 s".
std::string FormatTime(absl::Duration duration);

// Returns a bar whose length is `share` (0 to 1) of a full bar, in steps of an eighth of a character if the terminal
// shows Unicode.
std::string Bar(double share, const Terminal& terminal);

// Returns a square in the class's colour and a space; "" without colours.
std::string Swatch(uint32_t color_rgb, const Terminal& terminal);

}  // namespace voxserve::client
