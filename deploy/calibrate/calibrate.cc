#include "deploy/calibrate/calibrate.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cpp/cli/scan_jobs.h"
#include "deploy/calibrate/agreement.h"
#include "deploy/calibrate/comparison.h"
#include "deploy/calibrate/layer_choice.h"
#include "deploy/calibrate/options.h"
#include "deploy/calibrate/output_version.h"
#include "deploy/calibrate/report.h"
#include "deploy/calibrate/scales.h"
#include "deploy/offline/scan_files.h"
#include "engine/base/regular_file.h"
#include "engine/base/status_macros.h"
#include "engine/compiler/int8_values.h"
#include "engine/model/model_version.h"
#include "engine/model/problems.h"
#include "kernels/core/thread_pool.h"

namespace voxserve::calibrate {
namespace {

namespace fs = std::filesystem;

constexpr char kProgram[] = "voxserve-calibrate";
constexpr int64_t kMaxWeightBytes = int64_t{1} << 40;
// A layer's own cost is measured on so many of the scans that are compared.
constexpr size_t kMostCostScans = 3;

std::string LayersText(int count) { return absl::StrCat(count, count == 1 ? " layer" : " layers"); }

absl::StatusOr<std::string> ReadModelFile(const fs::path& path) {
  absl::StatusOr<std::string> content = ReadRegularFile(path, kMaxWeightBytes);
  if (content.ok()) return content;
  return absl::Status(content.status().code(),
                      absl::StrCat(path.string(), ": cannot be read (", content.status().message(), ")"));
}

// Makes one 8-bit version. Its functions are called in their order.
class Calibration {
 public:
  Calibration(const Options& options, const offline::Surroundings& surroundings)
      : options_(options), surroundings_(surroundings), progress_(surroundings) {}

  absl::Status Run(const std::vector<client::ScanJob>& jobs) {
    RETURN_IF_ERROR(Load());
    ASSIGN_OR_RETURN(output_, OutputVersion::Create(options_.output, found_.folder(), options_.may_overwrite));
    WarnOfPolicy();
    RETURN_IF_ERROR(ReadScans(jobs));
    RETURN_IF_ERROR(FindScales());
    LeaveWithoutScales(float_version_.graph, candidates_, scales_, &layers_);
    if (WorstLayer(layers_) < 0) return NoLayerLeft("");
    RETURN_IF_ERROR(RunComparedScans());
    RETURN_IF_ERROR(WriteVersion());
    if (options_.measures_layers) RETURN_IF_ERROR(MeasureLayers());
    RETURN_IF_ERROR(ReturnLayers());
    RETURN_IF_ERROR(output_->Write("config.textproto", Int8Config(config_text_, FloatNodes(layers_))));
    RETURN_IF_ERROR(CheckStop());
    RETURN_IF_ERROR(output_->Commit());
    Report();
    return absl::OkStatus();
  }

 private:
  absl::Status Load() {
    ASSIGN_OR_RETURN(found_, offline::FindVersion(options_.model));
    ASSIGN_OR_RETURN(float_version_, LoadModelVersion(found_.model_folder, found_.version));
    const std::vector<GraphNode>& nodes = float_version_.graph.nodes;
    if (float_version_.config.precision == ModelConfig::Precision::kInt8 ||
        std::any_of(nodes.begin(), nodes.end(), [](const GraphNode& node) { return node.scale > 0; })) {
      return absl::InvalidArgumentError(absl::StrCat(
          found_.folder().string(), " is a version in 8 bits already; calibrate the version that it was made from"));
    }
    const fs::path config = ConfigPathOf(found_.model_folder, found_.version);
    std::error_code error;
    if (fs::exists(config, error)) {
      ASSIGN_OR_RETURN(config_text_, ReadModelFile(config));
    }
    candidates_ = FindInt8Candidates(float_version_.graph);
    ASSIGN_OR_RETURN(layers_, ChooseLayers(float_version_.graph, candidates_, options_.float_nodes));
    const int64_t threads = options_.threads == 0 ? kernels::ThreadPool::AvailableCpus() : options_.threads;
    ASSIGN_OR_RETURN(comparison_, Comparison::Create(float_version_, static_cast<int>(threads), [this] {
                       ++num_runs_;
                       progress_.Show(std::min(1.0, static_cast<double>(num_runs_) / num_expected_runs_), stage_);
                       return CheckStop();
                     }));
    return absl::OkStatus();
  }

  absl::Status CheckStop() const {
    return surroundings_.wants_stop() ? absl::CancelledError("interrupted") : absl::OkStatus();
  }

  void Warn(const std::string& warning) {
    progress_.Clear();
    *surroundings_.err << kProgram << ": warning: " << warning << std::endl;
  }

  // Warns if a server that serves the source no longer does as soon as the output lies beside it.
  void WarnOfPolicy() {
    std::error_code error;
    if (!fs::equivalent(output_->path().parent_path(), found_.model_folder, error)) return;
    Problems ignored;  // the server reports them, and serves all versions
    const VersionPolicy policy = ReadVersionPolicy(found_.model_folder, &ignored);
    std::vector<int64_t> versions = found_.versions;
    std::erase(versions, output_->version());
    const auto chooses_source = [&] {
      const std::vector<int64_t> chosen = policy.Choose(versions).versions;
      return std::find(chosen.begin(), chosen.end(), found_.version) != chosen.end();
    };
    if (!chooses_source()) return;
    versions.insert(std::lower_bound(versions.begin(), versions.end(), output_->version()), output_->version());
    if (chooses_source()) return;
    Warn(absl::StrCat("version_policy (latest: ", policy.latest, ") in ",
                      (found_.model_folder / "config.textproto").string(), " will no longer choose version ",
                      found_.version,
                      ", the float version; a server with a GPU before Ampere then serves neither, since ",
                      "such a GPU does not multiply in 8 bits"));
  }

  absl::Status ReadScans(const std::vector<client::ScanJob>& jobs) {
    ASSIGN_OR_RETURN(scans_, offline::ReadScans(kProgram, jobs,
                                                {.fields = options_.fields,
                                                 .max_scans = options_.max_scans,
                                                 .max_points = float_version_.config.max_points},
                                                surroundings_));
    const size_t count = scans_.tasks.size();
    const auto wanted = static_cast<size_t>(options_.hold_out);
    const bool calibrates = options_.scales.empty();
    if (wanted > count || (calibrates && count > 1 && wanted == count)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--hold_out is ", wanted, ", but there ",
                       count == 1 ? "is only 1 scan" : absl::StrCat("are only ", count, " scans"),
                       calibrates && count > 1 ? "; one at least is calibrated on" : ""));
    }
    if (!calibrates) {
      num_calibrated_ = 0;
      first_compared_ = wanted == 0 ? 0 : count - wanted;
    } else if (count == 1) {
      num_calibrated_ = 1;
      Warn("there is only one scan: it is calibrated on and compared, so the comparison says less than it seems to");
    } else {
      num_calibrated_ = count - (wanted == 0 ? std::max<size_t>(count / 10, 1) : wanted);
      first_compared_ = num_calibrated_;
    }
    const auto in_8_bits = static_cast<size_t>(std::count_if(
        layers_.begin(), layers_.end(), [](const LayerChoice& layer) { return layer.why_float.empty(); }));
    const size_t num_compared = count - first_compared_;
    const size_t num_cost_runs = options_.measures_layers ? in_8_bits * std::min(num_compared, kMostCostScans) : 0;
    num_expected_runs_ = static_cast<double>(num_calibrated_ + 2 * num_compared + num_cost_runs);
    return absl::OkStatus();
  }

  absl::Status FindScales() {
    if (!options_.scales.empty()) {
      const std::set<std::string> needed = NeededScales(float_version_.graph, candidates_, layers_);
      ASSIGN_OR_RETURN(scales_, ReadScales(options_.scales, float_version_.graph, candidates_, needed));
      return absl::OkStatus();
    }
    stage_ = absl::StrCat("values of ", num_calibrated_, num_calibrated_ == 1 ? " scan" : " scans");
    ValueCounts counts(float_version_.graph, candidates_);
    size_t num_run = 0;
    for (size_t i = 0; i < num_calibrated_; ++i) {
      ASSIGN_OR_RETURN(const InferResult result,
                       comparison_->RunFloat(ScanAt(i), [&](int node, const kernels::ConstRows& rows) {
                         return counts.Add(node, rows, comparison_->pool());
                       }));
      num_run += TakesScan(i, result) ? 1 : 0;
    }
    if (num_run == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("none of the ", num_calibrated_, " scans to calibrate on can be run"));
    }
    std::vector<std::string> warnings;
    scales_ = counts.Choose(&warnings);
    largest_ = counts.Largest();
    for (const std::string& warning : warnings) Warn(warning);
    return absl::OkStatus();
  }

  Comparison::Scan ScanAt(size_t scan) const { return {&scans_.tasks[scan], scans_.files[scan]}; }

  // Returns false, and says so, if the network refuses the scan.
  bool TakesScan(size_t scan, const InferResult& result) {
    if (result.status.ok()) return true;
    progress_.Clear();
    *surroundings_.err << kProgram << ": left out: " << scans_.files[scan] << ": " << result.status.message()
                       << std::endl;
    return false;
  }

  absl::Status RunComparedScans() {
    stage_ = absl::StrCat("float answers to compare");
    for (size_t i = first_compared_; i < scans_.tasks.size(); ++i) {
      ASSIGN_OR_RETURN(InferResult result, comparison_->RunFloat(ScanAt(i)));
      if (TakesScan(i, result)) comparison_->Keep(ScanAt(i), std::move(result));
    }
    if (comparison_->num_kept() > 0) return absl::OkStatus();
    return absl::InvalidArgumentError("none of the scans to compare can be run");
  }

  // Writes the graph, the weights with the scales, and a first config, and loads them as a server would.
  absl::Status WriteVersion() {
    const fs::path folder = found_.folder();
    for (const char* const name : {"model.textproto", "weights.safetensors"}) {
      ASSIGN_OR_RETURN(std::string content, ReadModelFile(folder / name));
      if (name == std::string("weights.safetensors")) content = WithScales(content, scales_);
      RETURN_IF_ERROR(output_->Write(name, content));
    }
    RETURN_IF_ERROR(output_->Write("config.textproto", Int8Config(config_text_, FloatNodes(layers_))));
    ASSIGN_OR_RETURN(int8_version_, LoadModelVersion(output_->model_folder(), output_->version()));
    return absl::OkStatus();
  }

  // Measures what each layer costs that is in 8 bits alone.
  absl::Status MeasureLayers() {
    stage_ = "what each layer costs";
    std::vector<std::string> all;
    for (const LayerChoice& layer : layers_) all.push_back(layer.node);
    for (LayerChoice& layer : layers_) {
      if (!layer.why_float.empty()) continue;
      std::vector<std::string> others = all;
      std::erase(others, layer.node);
      ASSIGN_OR_RETURN(const Agreement agreement, comparison_->Compare(int8_version_, others, kMostCostScans));
      layer.is_measured = true;
      layer.disagreement = 1 - agreement.share();
      layer.error = agreement.error();
    }
    return absl::OkStatus();
  }

  // Returns the worst layers to float until the answers agree.
  absl::Status ReturnLayers() {
    for (int num_returned = 0;; ++num_returned) {
      stage_ =
          num_returned == 0 ? "comparing" : absl::StrCat("comparing, ", LayersText(num_returned), " back in float");
      ASSIGN_OR_RETURN(const Agreement agreement,
                       comparison_->Compare(int8_version_, FloatNodes(layers_), comparison_->num_kept()));
      if (agreement.empty()) {
        return absl::InvalidArgumentError("the scans that are compared have no labels, boxes or rows to compare");
      }
      if (num_returned == 0) first_agreement_ = FormatAgreement(agreement, comparison_->num_kept());
      agreement_ = FormatAgreement(agreement, comparison_->num_kept());
      if (agreement.share() >= options_.agreement) return absl::OkStatus();
      if (num_returned == 0 && !options_.measures_layers) RETURN_IF_ERROR(MeasureLayers());
      const int worst = WorstLayer(layers_);
      layers_[static_cast<size_t>(worst)].why_float = "returned";
      if (WorstLayer(layers_) < 0) return NoLayerLeft(agreement_);
      num_returned_ = num_returned + 1;
    }
  }

  // agreement: with one layer in 8 bits; "" if nothing was compared.
  absl::Status NoLayerLeft(const std::string& agreement) {
    if (agreement.empty()) return absl::InvalidArgumentError("no layer is left that could multiply in 8 bits");
    progress_.Clear();
    *surroundings_.out << FormatLayers(layers_, Ranges(), largest_) << std::flush;
    return absl::InvalidArgumentError(absl::StrFormat(
        "the answers do not agree as wanted (--agreement %g), even with one layer in 8 bits: as in float are %s",
        options_.agreement, agreement));
  }

  // Returns the largest magnitude that each value keeps in 8 bits.
  std::map<std::string, float> Ranges() const {
    std::map<std::string, float> ranges;
    for (const Int8Value& value : candidates_.values) {
      const std::string& name = float_version_.graph.nodes[static_cast<size_t>(value.node)].name;
      if (const auto scale = scales_.find(name); scale != scales_.end()) {
        ranges[name] = scale->second * static_cast<float>(LargestInteger(value.is_non_negative));
      }
    }
    return ranges;
  }

  void Report() {
    progress_.Clear();
    const auto in_8_bits =
        std::count_if(layers_.begin(), layers_.end(), [](const LayerChoice& layer) { return layer.why_float.empty(); });
    *surroundings_.out << FormatLayers(layers_, Ranges(), largest_) << "\n"
                       << in_8_bits << " of " << layers_.size() << " layers multiply in 8 bits. As in float are "
                       << agreement_;
    if (num_returned_ > 0) {
      *surroundings_.out << " (" << first_agreement_ << " before " << LayersText(num_returned_)
                         << " returned to float)";
    }
    *surroundings_.out << ".\nwrote " << output_->path().string() << std::endl;
  }

  const Options& options_;
  const offline::Surroundings& surroundings_;
  offline::ProgressReport progress_;
  std::string stage_;
  size_t num_runs_ = 0;
  double num_expected_runs_ = 1;

  offline::FoundVersion found_;
  std::string config_text_;
  LoadedModel float_version_, int8_version_;
  Int8Candidates candidates_;
  std::vector<LayerChoice> layers_;  // by Int8Candidates::layers
  offline::Scans scans_;
  size_t num_calibrated_ = 0;  // scans from the first on
  size_t first_compared_ = 0;  // scans from this one on are compared
  std::unique_ptr<Comparison> comparison_;
  std::unique_ptr<OutputVersion> output_;
  Scales scales_;
  std::map<std::string, float> largest_;  // of each value, by node
  std::string first_agreement_, agreement_;
  int num_returned_ = 0;
};

}  // namespace

int Run(const std::vector<std::string>& words, const offline::Surroundings& surroundings) {
  const absl::StatusOr<Options> options = ParseOptions(words);
  return offline::RunOnScans(
      kProgram, options.status(), options.ok() ? *options : Options(), HelpText, surroundings,
      [&](const std::vector<client::ScanJob>& jobs) { return Calibration(*options, surroundings).Run(jobs); });
}

}  // namespace voxserve::calibrate
