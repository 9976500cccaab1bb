#include "engine/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/quoted.h"
#include "engine/model/text_file.h"
#include "voxserve/model/v1/config.pb.h"

namespace voxserve {
namespace {

constexpr int kMaxLabel = 65535;
constexpr uint32_t kMaxBatchRequests = 64;
constexpr uint32_t kMaxPriorityLevels = 16;
constexpr uint32_t kMaxDeviceWeight = 1000;
constexpr int kMaxSpecificVersions = 1000;

// Returns a class's colour. The hues of neighbouring ids differ by the golden angle, and three brightnesses take turns.
uint32_t GeneratedColor(int id) {
  const double hue = std::fmod(id * 0.6180339887498949, 1.0) * 6;
  const double value = 1.0 - 0.18 * (id % 3);
  const double saturation = 0.7;
  uint32_t rgb = 0;
  for (const double shift : {5.0, 3.0, 1.0}) {  // red, green, blue
    const double k = std::fmod(shift + hue, 6);
    const double channel = value - value * saturation * std::max(0.0, std::min({k, 4 - k, 1.0}));
    rgb = rgb << 8 | static_cast<uint32_t>(std::lround(channel * 255));
  }
  return rgb;
}

// Reads a colour such as "#rrggbb"; returns nullopt for other texts.
std::optional<uint32_t> ParseColor(const std::string& text) {
  uint32_t rgb = 0;
  const bool all_digits = text.size() == 7 && text[0] == '#' &&
                          std::all_of(text.begin() + 1, text.end(), [](unsigned char c) { return std::isxdigit(c); });
  if (!all_digits || !absl::SimpleHexAtoi(text.substr(1), &rgb)) return std::nullopt;
  return rgb;
}

// Returns a text such as "3 classes, 0 to 2".
std::string ClassesText(int num_classes) {
  return num_classes == 0 ? "no classes" : absl::StrCat(num_classes, " classes, 0 to ", num_classes - 1);
}

void ReadClasses(const model::v1::ModelConfig& proto, int num_classes, ModelConfig* config, const ProblemsAt& at) {
  std::set<uint32_t> ids;
  for (const auto& entry : proto.classes()) {
    if (!ids.insert(entry.id()).second) at.Add("class ", entry.id(), " appears twice");
    const std::optional<uint32_t> color = ParseColor(entry.color());
    if (!entry.color().empty() && !color) {
      at.Add("class ", entry.id(), " has color ", Quoted(entry.color()), "; it must look like \"#1e90ff\"");
    }
    if (num_classes == kUnknownNumClasses) continue;
    if (entry.id() >= config->classes.size()) {
      at.Add("class ", entry.id(), " (", Quoted(entry.name()), ") does not exist; the network has ",
             ClassesText(num_classes));
      continue;
    }
    if (!entry.name().empty()) config->classes[entry.id()].name = entry.name();
    if (color) config->classes[entry.id()].color_rgb = *color;
  }
}

int64_t ReadLimit(const char* name, uint64_t value, int64_t default_value, const ProblemsAt& at) {
  if (value == 0) return default_value;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // rows are counted in 32 bits
  if (value > static_cast<uint64_t>(kMost)) at.Add(name, " is ", value, "; at most ", kMost, " is possible");
  return static_cast<int64_t>(std::min(value, static_cast<uint64_t>(kMost)));
}

ModelConfig::Precision ReadPrecision(model::v1::Precision precision, const ProblemsAt& at) {
  switch (precision) {
    case model::v1::PRECISION_UNSPECIFIED:
    case model::v1::PRECISION_FLOAT16:
      break;
    case model::v1::PRECISION_FLOAT32:
      return ModelConfig::Precision::kFloat32;
    case model::v1::PRECISION_TFLOAT32:
      return ModelConfig::Precision::kTfloat32;
    case model::v1::PRECISION_BFLOAT16:
      return ModelConfig::Precision::kBfloat16;
    case model::v1::PRECISION_INT8:
      return ModelConfig::Precision::kInt8;
    default:
      at.Add("precision ", static_cast<int>(precision), " is unknown");
  }
  return ModelConfig::Precision::kFloat16;
}

ModelConfig::Batching ReadBatching(const model::v1::BatchingConfig& proto, const ProblemsAt& at) {
  ModelConfig::Batching batching;
  const auto read_count = [&at](const char* name, uint32_t value, int default_value, uint32_t most) {
    if (value == 0) return default_value;
    if (value > most) at.Add("batching: ", name, " is ", value, "; at most ", most, " is possible");
    return static_cast<int>(std::min(value, most));
  };
  batching.max_batch_points =
      ReadLimit("batching: max_batch_points", proto.max_batch_points(), batching.max_batch_points, at);
  batching.max_batch_voxels =
      ReadLimit("batching: max_batch_voxels", proto.max_batch_voxels(), batching.max_batch_voxels, at);
  batching.max_batch_requests =
      read_count("max_batch_requests", proto.max_batch_requests(), batching.max_batch_requests, kMaxBatchRequests);
  batching.priority_levels =
      read_count("priority_levels", proto.priority_levels(), batching.priority_levels, kMaxPriorityLevels);
  batching.device_weight = read_count("device_weight", proto.device_weight(), batching.device_weight, kMaxDeviceWeight);
  batching.max_queue_requests = proto.max_queue_requests();
  if (proto.max_queue_delay_ms() > 0) batching.max_queue_delay = absl::Milliseconds(proto.max_queue_delay_ms());
  if (proto.default_timeout_ms() > 0) batching.default_timeout = absl::Milliseconds(proto.default_timeout_ms());
  return batching;
}

VersionPolicy ReadVersionPolicy(const model::v1::VersionPolicy& proto, const ProblemsAt& at) {
  VersionPolicy policy;
  if (proto.has_latest()) {
    policy.latest = proto.latest();
    if (policy.latest == 0) at.Add("version_policy: latest is 0; it must be 1 or more");
  }
  if (!proto.has_specific()) return policy;
  if (proto.specific().versions_size() > kMaxSpecificVersions) {
    at.Add("version_policy: specific names ", proto.specific().versions_size(), " versions; at most ",
           kMaxSpecificVersions, " are possible");
    return policy;
  }
  std::set<int64_t> versions;
  for (const int64_t version : proto.specific().versions()) {
    if (version < 1) at.Add("version_policy: version ", version, " cannot be; versions are 1, 2, 3, ...");
    if (!versions.insert(version).second) at.Add("version_policy: version ", version, " appears twice");
  }
  if (versions.empty()) at.Add("version_policy: specific names no version");
  policy.specific.assign(versions.begin(), versions.end());
  return policy;
}

}  // namespace

VersionPolicy::Choice VersionPolicy::Choose(const std::vector<int64_t>& present) const {
  if (!specific.empty()) {
    Choice choice;
    for (const int64_t version : specific) {
      const bool is_there = std::binary_search(present.begin(), present.end(), version);
      (is_there ? choice.versions : choice.missing).push_back(version);
    }
    return choice;
  }
  const size_t count = latest == 0 ? present.size() : std::min<size_t>(latest, present.size());
  return {.versions = {present.end() - static_cast<std::ptrdiff_t>(count), present.end()}, .missing = {}};
}

kernels::DType ModelConfig::gpu_dtype() const {
  switch (precision) {
    case Precision::kFloat32:
    case Precision::kTfloat32:
      return kernels::DType::kFloat32;
    case Precision::kBfloat16:
      return kernels::DType::kBfloat16;
    case Precision::kFloat16:
    case Precision::kInt8:
      break;
  }
  return kernels::DType::kFloat16;
}

int ModelConfig::bytes_per_label() const {
  return std::max(ignore_label, static_cast<int>(classes.size()) - 1) <= 255 ? 1 : 2;
}

ModelConfig ParseModelConfig(std::string_view textproto, int num_classes, Problems* problems, const std::string& file) {
  ModelConfig config;
  config.file = file;
  for (int id = 0; id < num_classes; ++id) {
    config.classes.push_back({.name = absl::StrCat("class ", id), .color_rgb = GeneratedColor(id)});
  }
  config.ignore_label = num_classes > 255 ? kMaxLabel : 255;

  model::v1::ModelConfig proto;
  if (!ParseTextProto(textproto, file, &proto, problems)) return config;
  const ProblemsAt at(file, problems);
  ReadClasses(proto, num_classes, &config, at);
  if (proto.has_ignore_label()) {
    const uint32_t label = proto.ignore_label();
    if (label > kMaxLabel) {
      at.Add("ignore_label is ", label, "; at most ", kMaxLabel, " is possible");
    } else if (num_classes == 0) {
      at.Add("ignore_label is ", label, "; the network has no classes");
    } else if (static_cast<int>(label) < num_classes) {
      at.Add("ignore_label ", label, " is a class; the network has ", ClassesText(num_classes));
    } else {
      config.ignore_label = static_cast<int>(label);
    }
  }
  config.max_points = ReadLimit("max_points", proto.max_points(), config.max_points, at);
  config.max_voxels = ReadLimit("max_voxels", proto.max_voxels(), config.max_voxels, at);
  config.precision = ReadPrecision(proto.precision(), at);
  config.float_nodes.assign(proto.int8().float_nodes().begin(), proto.int8().float_nodes().end());
  config.batching = ReadBatching(proto.batching(), at);
  config.version_policy = ReadVersionPolicy(proto.version_policy(), at);
  switch (proto.voxel_overflow_policy()) {
    case model::v1::VOXEL_OVERFLOW_POLICY_UNSPECIFIED:
    case model::v1::VOXEL_OVERFLOW_POLICY_REJECT:
      break;
    case model::v1::VOXEL_OVERFLOW_POLICY_NEAREST_FIRST:
      config.voxel_overflow = ModelConfig::VoxelOverflow::kNearestFirst;
      break;
    case model::v1::VOXEL_OVERFLOW_POLICY_FIRST_SEEN:
      config.voxel_overflow = ModelConfig::VoxelOverflow::kFirstSeen;
      break;
    default:
      at.Add("voxel_overflow_policy ", static_cast<int>(proto.voxel_overflow_policy()), " is unknown");
  }
  return config;
}

}  // namespace voxserve
