#include "client/cpp/io/point_cloud_reader.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cpp/io/file.h"
#include "client/cpp/io/npy_reader.h"
#include "client/cpp/io/pcd_reader.h"
#include "client/cpp/io/ply_reader.h"
#include "client/cpp/io/raw_reader.h"

namespace voxserve::client {
namespace {

enum class Format { kKitti, kNuScenes, kPcd, kPly, kNpy, kUnknown };

constexpr absl::string_view kKittiSpec = "x:f32,y:f32,z:f32,intensity:f32";
constexpr absl::string_view kNuScenesSpec = "x:f32,y:f32,z:f32,intensity:f32*0.00392156862745098,ring:f32";

Format FormatOf(const std::string& path) {
  const std::string lower = absl::AsciiStrToLower(path);
  if (absl::EndsWith(lower, ".pcd.bin")) return Format::kNuScenes;
  if (absl::EndsWith(lower, ".bin")) return Format::kKitti;
  if (absl::EndsWith(lower, ".pcd")) return Format::kPcd;
  if (absl::EndsWith(lower, ".ply")) return Format::kPly;
  if (absl::EndsWith(lower, ".npy")) return Format::kNpy;
  return Format::kUnknown;
}

// Texts and packed files, whose bytes are no points whatever a field spec says.
constexpr absl::string_view kNotRaw[] = {".csv",  ".txt",  ".xyz",    ".xyzi", ".pts", ".ptx",  ".asc", ".json",
                                         ".npz",  ".gz",   ".bz2",    ".xz",   ".zst", ".zip",  ".tar", ".h5",
                                         ".hdf5", ".pkl",  ".pickle", ".pt",   ".pth", ".mat",  ".obj", ".off",
                                         ".stl",  ".pcap", ".bag",    ".mcap", ".db3", ".arrow"};

// Formats that the Python client reads with other libraries.
constexpr absl::string_view kOfPython[] = {".las", ".laz", ".e57", ".feather", ".parquet"};

// How files of other formats begin, and their usual extension: so many bytes that they are no coordinates.
constexpr std::pair<absl::string_view, absl::string_view> kBeginnings[] = {
    {"\x93NUMPY", ".npy"},  {"# .PCD", ".pcd"},           {"ply\n", ".ply"},          {"ply\r", ".ply"},
    {"LASF", ".las"},       {"ASTM-E57", ".e57"},         {"PAR1", ".parquet"},       {"ARROW1", ".feather"},
    {"PK\x03\x04", ".npz"}, {"\x89HDF\r\n\x1a\n", ".h5"}, {"\x89MCAP0\r\n", ".mcap"}, {"\x1f\x8b\x08", ".gz"}};

// Returns what the user can do with a file of this extension that has another one.
std::string AdviceFor(absl::string_view extension) {
  if (extension == ".gz") return "unpack it";
  if (extension == ".npz") return "save its array as .npy";
  if (extension == ".h5") return "save its points as .npy";
  if (extension == ".mcap") return "python -m voxserve.bag labels recordings";
  const bool is_of_python = std::find(std::begin(kOfPython), std::end(kOfPython), extension) != std::end(kOfPython);
  return is_of_python ? absl::StrCat("python -m voxserve infer reads it by the extension ", extension)
                      : absl::StrCat("it is read as one only by the extension ", extension);
}

absl::Status CheckContents(absl::string_view contents) {
  for (const auto& [beginning, extension] : kBeginnings) {
    if (!absl::StartsWith(contents, beginning)) continue;
    // After the beginning gzip has its flags, below 32, where a coordinate has its exponent.
    if (extension == ".gz" && (contents.size() < 4 || static_cast<unsigned char>(contents[3]) >= 32)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the file begins as ", extension, " files do; ", AdviceFor(extension)));
  }
  return absl::OkStatus();
}

// Refuses files by their extension, whatever their contents. has_layout: whether the user says how points are laid out.
absl::Status CheckExtension(const std::string& path, bool has_layout) {
  const std::string lower = absl::AsciiStrToLower(path);
  const auto ends_path = [&](absl::string_view extension) { return absl::EndsWith(lower, extension); };
  if (std::any_of(std::begin(kNotRaw), std::end(kNotRaw), ends_path)) {
    return absl::InvalidArgumentError(
        "text, tables, archives and recordings are not read as a scan; save the points as .npy, .pcd or .ply; python "
        "-m voxserve.bag labels recordings");
  }
  if (std::any_of(std::begin(kOfPython), std::end(kOfPython), ends_path)) {
    return absl::InvalidArgumentError("python -m voxserve infer reads files of this kind");
  }
  if (!has_layout && FormatOf(path) == Format::kUnknown) {
    return absl::InvalidArgumentError(
        "unknown extension; .bin, .pcd.bin, .pcd, .ply and .npy are known; a file of raw points needs --fields");
  }
  return absl::OkStatus();
}

absl::StatusOr<PointCloud> Read(Format format, std::string contents, const FieldSpec* spec) {
  switch (format) {
    case Format::kPcd:
      return ReadPcd(std::move(contents), spec);
    case Format::kPly:
      return ReadPly(std::move(contents), spec);
    case Format::kNpy:
      return ReadNpy(std::move(contents), spec);
    case Format::kKitti:
    case Format::kNuScenes:
    case Format::kUnknown:
      break;
  }
  if (absl::Status status = CheckContents(contents); !status.ok()) return status;
  if (spec != nullptr) return ReadRaw(std::move(contents), *spec);
  return ReadRaw(std::move(contents), *ParseFieldSpec(format == Format::kKitti ? kKittiSpec : kNuScenesSpec));
}

// Returns the scale that brings an intensity of this type to 0..1: an unsigned integer says its largest value. Returns
// 1 for other fields.
double ScaleByType(const PointField& field) {
  if (!absl::EqualsIgnoreCase(field.name(), "intensity") && !absl::EqualsIgnoreCase(field.name(), "reflectivity")) {
    return 1;
  }
  if (field.type() == v1::POINT_FIELD_TYPE_UINT8) return 1.0 / 255;
  return field.type() == v1::POINT_FIELD_TYPE_UINT16 ? 1.0 / 65535 : 1;
}

// Returns true if the spec says the scale of the field, which has its new name. The spec finds fields by names in any
// case.
bool SaysScale(const FieldSpec& spec, const std::string& name) {
  const auto is_entry = [&](const std::string& wanted) {
    return std::any_of(spec.fields.begin(), spec.fields.end(),
                       [&](const PointField& f) { return absl::EqualsIgnoreCase(f.name(), wanted); });
  };
  return is_entry(name) || std::any_of(spec.renames.begin(), spec.renames.end(), [&](const FieldRename& rename) {
           return absl::EqualsIgnoreCase(rename.name, name) && (rename.scale || is_entry(rename.source));
         });
}

// Sets the scale by type of fields whose scale the spec does not say.
void ScaleIntensities(const FieldSpec* spec, PointCloud* cloud) {
  for (PointField& field : *cloud->mutable_fields()) {
    if (spec != nullptr && SaysScale(*spec, field.name())) continue;
    if (const double scale = ScaleByType(field); scale != 1) field.set_scale(scale);
  }
}

}  // namespace

absl::StatusOr<PointCloud> ReadPointCloud(const std::string& path, const ReadOptions& options) {
  std::optional<FieldSpec> spec;
  if (!options.fields.empty()) {
    absl::StatusOr<FieldSpec> parsed = ParseFieldSpec(options.fields);
    if (!parsed.ok()) return parsed.status();
    spec = *std::move(parsed);
  }
  if (absl::Status status = CheckFile(path); !status.ok()) return status;
  const bool has_layout = spec && spec->point_step > 0;
  if (absl::Status status = CheckExtension(path, has_layout); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  }
  absl::StatusOr<std::string> contents = ReadFile(path);
  if (!contents.ok()) return contents.status();
  const Format format = FormatOf(path);
  absl::StatusOr<PointCloud> cloud = Read(format, *std::move(contents), has_layout ? &*spec : nullptr);
  absl::Status status = cloud.status();
  if (status.ok() && spec) status = ApplyRenames(spec->renames, &*cloud);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  if (format == Format::kPcd || format == Format::kPly) ScaleIntensities(spec ? &*spec : nullptr, &*cloud);
  return cloud;
}

bool IsPointCloudFile(const std::string& path) { return FormatOf(path) != Format::kUnknown; }

}  // namespace voxserve::client
