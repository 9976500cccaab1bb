#include "client/cpp/cli/infer_command.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/cpp/cli/box_report.h"
#include "client/cpp/cli/progress_bar.h"
#include "client/cpp/cli/report.h"
#include "client/cpp/cli/scan_jobs.h"
#include "client/cpp/io/box_file.h"
#include "client/cpp/io/label_file.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "client/cpp/io/tensor_file.h"
#include "client/cpp/view/count_text.h"
#include "client/cpp/view/picture.h"
#include "client/cpp/view/preview.h"

namespace voxserve::client {
namespace {

constexpr float kMaxPlausibleIntensity = 1.5f;  // for a field with unit 1

struct InferArguments {
  Connection connection;
  std::string model;
  int64_t version = 0;
  std::string fields;
  ScanPaths paths;
  bool preview = false;
  bool json = false;
  std::string color = "auto";
  int64_t concurrency = 4;
  int64_t sample = 0;
  int64_t sample_start = 0;
  std::string sample_use = "return";
  std::string outputs;
  std::string tensor_type = "float32";

  std::optional<FarthestPoints> Sample() const {
    if (sample == 0) return std::nullopt;
    return FarthestPoints{
        .num_points = static_cast<uint32_t>(sample),
        .start_index = static_cast<uint32_t>(sample_start),
        .use = sample_use == "network" ? FarthestPoints::Use::kNetwork : FarthestPoints::Use::kReturn};
  }

  WantedTensors Tensors() const {
    return {.names = absl::StrSplit(outputs, ',', absl::SkipEmpty()),
            .type = tensor_type == "float16" ? v1::ELEMENT_TYPE_FLOAT16 : v1::ELEMENT_TYPE_FLOAT32};
  }

  std::vector<Flag> Flags() {
    std::vector<Flag> flags = {
        StringFlag("model", "NAME", "The model to use; voxserve-client models lists them. Required.", &model),
        IntFlag("version", "N", "Its version. Default: the newest that is ready.", 1, INT64_MAX, &version),
        StringFlag("fields", "SPEC",
                   "Layout of the points if the extension does not tell: NAME:TYPE[*SCALE][+SHIFT] for each value in "
                   "order, with types i8 u8 i16 u16 i32 u32 f16 f32 f64; the name - skips a value. In PCD, PLY and "
                   "structured NPY files, which name their fields, an entry sets the scale and shift of its field.",
                   &fields),
        StringFlag("save", "FILE|FOLDER",
                   "Writes the labels: .npy (uint8 or uint16 [N]) or .label (SemanticKITTI's uint32); or the boxes: "
                   ".json, .csv or .npy (structured: class_id, score, x, y, z, length, width, height, yaw, velocity_x, "
                   "velocity_y). A folder gets one .npy per scan.",
                   &paths.save),

        StringFlag(
            "outputs", "NAME,...",
            "Asks for these tensors of the model instead. Default: all of one that has neither labels nor boxes. "
            "With --save OUT.npy or a folder each is written to OUT.NAME.npy, of sites OUT.NAME.coordinates.npy "
            "and OUT.NAME.unit.npy too.",
            &outputs),
        ChoiceFlag("tensor_type", {"float32", "float16"}, "Type of the tensors' values. Default float32.",
                   &tensor_type),
        StringFlag("picture", "FILE|FOLDER",
                   "Draws the scan with its labels or boxes from above, to a .png file, or to a folder with one file "
                   "per scan.",
                   &paths.picture),
        StringFlag("truth", "FILE|FOLDER",
                   "Compares labels with labels made by people: one byte per point (255 = none), .label or .npy. In a "
                   "folder: SCAN.truth.u8, SCAN.u8, SCAN.label or SCAN.npy.",
                   &paths.truth),
        IntFlag("sample", "N",
                "Also selects N farthest points of each scan: every next one is the farthest from those before it. "
                "--json prints their indices.",
                1, UINT32_MAX, &sample),
        IntFlag("sample_start", "INDEX", "The first point that --sample selects. Default 0.", 0, UINT32_MAX,
                &sample_start),
        ChoiceFlag("sample_use", {"return", "network"},
                   "return: the answer lists the points of --sample; network: the network sees only these points, and "
                   "the others get no label. Default return.",
                   &sample_use),
        SwitchFlag("preview", "Shows the scan with its labels or boxes from above in the terminal. One scan only.",
                   &preview),
        SwitchFlag("json", "Prints one line of JSON per scan instead of tables.", &json),
        StringFlag("color", "WHEN", "auto (default: in terminals, unless NO_COLOR is set), always or never.", &color),
        IntFlag("concurrency", "N", "Scans in flight at once, if there are several. Default 4.", 1, 256, &concurrency),
    };
    for (Flag& flag : connection.Flags()) flags.push_back(std::move(flag));
    return flags;
  }
};

bool AsksTensors(const v1::ModelVersion& model, const InferArguments& arguments) {
  const bool is_ready = model.state() == v1::MODEL_STATE_READY;
  return !arguments.outputs.empty() ||
         (is_ready && model.tensors_size() > 0 && !model.has_labels() && !model.has_boxes());
}

// Runs the scans of one command line and writes the outputs that the command line names. It asks the model for tensors
// if they are named or the model has nothing else, otherwise for boxes if the model has them, else for labels.
// Thread-safe.
class ScanRunner {
 public:
  ScanRunner(const InferArguments& arguments, const Terminal& terminal, Client* client, v1::ModelVersion model)
      : arguments_(arguments), terminal_(terminal), client_(client), model_(std::move(model)) {}

  const v1::ModelVersion& model() const { return model_; }

  // preview: receives the terminal picture if the command line asks for it.
  absl::StatusOr<ScanReport> Run(const ScanJob& job, std::string* preview) {
    absl::StatusOr<PointCloud> cloud = ReadPointCloud(job.input, {.fields = arguments_.fields});
    if (!cloud.ok()) return cloud.status();
    WarnOfIntensity(job.input, *cloud);
    ScanReport report;
    report.file = job.input;
    report.num_points = cloud->num_points();
    std::vector<uint16_t> truth;
    if (!job.truth.empty()) {
      absl::StatusOr<std::vector<uint16_t>> read = ReadLabels(job.truth, report.num_points);
      if (!read.ok()) return read.status();
      truth = *std::move(read);
    }
    const bool is_drawn = !job.picture.empty() || arguments_.preview;
    const InferOptions options = {.model = model_.name(),
                                  .version = arguments_.version,
                                  .timeout = arguments_.connection.timeout,
                                  .sample = arguments_.Sample(),
                                  .tensors = arguments_.Tensors()};
    if (AsksTensors(model_, arguments_)) {
      if (absl::Status status = Tensors(options, *std::move(cloud), job, &report); !status.ok()) return status;
      return report;
    }
    const PointCloud drawn = is_drawn ? *cloud : PointCloud();
    std::vector<uint16_t> labels;
    const absl::Status status = model_.has_boxes() ? Detect(options, *std::move(cloud), job, &report)
                                                   : Segment(options, *std::move(cloud), truth, job, &report, &labels);
    if (!status.ok()) return status;
    if (is_drawn) {
      absl::StatusOr<AnnotatedScan> scan = report.boxes ? AnnotatedScan::WithBoxes(drawn, *report.boxes, model_)
                                                        : AnnotatedScan::WithLabels(drawn, std::move(labels), model_);
      if (!scan.ok()) return scan.status();
      if (absl::Status drawing = Draw(job, *scan, &report, preview); !drawing.ok()) return drawing;
    }
    return report;
  }

 private:
  absl::Status Segment(const InferOptions& options, PointCloud cloud, const std::vector<uint16_t>& truth,
                       const ScanJob& job, ScanReport* report, std::vector<uint16_t>* labels) const {
    absl::StatusOr<Segmentation> result = client_->Infer(options, std::move(cloud));
    if (!result.ok()) return result.status();
    const std::vector<v1::ClassInfo> classes(model_.classes().begin(), model_.classes().end());
    report->classes = CountClasses(result->labels, result->ignore_label, classes);
    if (!job.truth.empty()) {
      report->agreement = Compare(result->labels, truth, result->ignore_label, classes);
      report->agreement->file = job.truth;
    }
    if (!job.save.empty()) {
      if (absl::Status status = WriteLabels(job.save, result->labels, result->bytes_per_label); !status.ok()) {
        return status;
      }
      report->written.push_back(job.save);
    }
    *labels = std::move(result->labels);
    report->result = *std::move(result);
    return absl::OkStatus();
  }

  absl::Status Detect(const InferOptions& options, PointCloud cloud, const ScanJob& job, ScanReport* report) const {
    absl::StatusOr<Detections> result = client_->Detect(options, std::move(cloud));
    if (!result.ok()) return result.status();
    if (!job.save.empty()) {
      if (absl::Status status = WriteBoxes(job.save, result->boxes); !status.ok()) return status;
      report->written.push_back(job.save);
    }
    report->boxes = std::move(result->boxes);
    report->result = *std::move(result);
    return absl::OkStatus();
  }

  absl::Status Tensors(const InferOptions& options, PointCloud cloud, const ScanJob& job, ScanReport* report) const {
    absl::StatusOr<Answer> result = client_->InferTensors(options, std::move(cloud));
    if (!result.ok()) return result.status();
    report->result = *std::move(result);
    report->has_tensors = true;
    if (job.save.empty()) return absl::OkStatus();
    absl::StatusOr<std::vector<std::string>> written = WriteTensors(job.save, report->result.tensors);
    if (!written.ok()) return written.status();
    report->written = *std::move(written);
    return absl::OkStatus();
  }

  absl::Status Draw(const ScanJob& job, const AnnotatedScan& scan, ScanReport* report, std::string* preview) const {
    if (arguments_.preview) *preview = DrawPreview(scan, {.color = terminal_.out_color && terminal_.out_unicode});
    if (job.picture.empty()) return absl::OkStatus();
    const Answer& result = report->result;
    absl::Duration server;
    for (const Stage& stage : result.stages) server += stage.duration;
    const PictureText text = {.title = absl::StrCat(result.model, " v", result.version),
                              .lines = {job.input.substr(job.input.rfind('/') + 1),
                                        absl::StrCat(WithSeparators(report->num_points), " points, ",
                                                     WithSeparators(result.counts.voxels()), " voxels"),
                                        absl::StrCat(FormatTime(server), " on ", result.device)}};
    if (absl::Status status = DrawPicture(scan, text).WritePng(job.picture); !status.ok()) return status;
    report->written.push_back(job.picture);
    return absl::OkStatus();
  }

  // Warns of the commonest cause of wrong results from networks that read intensity as 0..1.
  void WarnOfIntensity(const std::string& file, const PointCloud& cloud) {
    const bool is_read = std::any_of(model_.features().begin(), model_.features().end(), [](const v1::FeatureInfo& f) {
      return f.name() == "intensity" && f.unit() == "1";
    });
    if (!is_read) return;
    const absl::StatusOr<std::vector<float>> values = FieldValues(cloud, "intensity");
    if (!values.ok()) return;
    float largest = 0;
    for (const float value : *values) largest = std::isfinite(value) ? std::max(largest, value) : largest;
    if (largest <= kMaxPlausibleIntensity || has_warned_.exchange(true)) return;
    std::cerr << "voxserve-client: warning: intensities of " << file << " reach " << largest << ", but "
              << model_.name() << " reads 0..1; scale them with --fields, e.g. "
              << "x:f32,y:f32,z:f32,intensity:f32*0.00392156862745098\n";
  }

  const InferArguments& arguments_;
  const Terminal& terminal_;
  Client* const client_;
  const v1::ModelVersion model_;
  std::atomic<bool> has_warned_{false};
};

int RunOne(const InferArguments& arguments, const Terminal& terminal, const ScanJob& job, ScanRunner* runner) {
  std::string preview;
  const absl::StatusOr<ScanReport> report = runner->Run(job, &preview);
  if (!report.ok()) {
    if (arguments.json) std::cout << FormatJsonError(job.input, report.status());
    return Fail(report.status());
  }
  if (arguments.json) {
    std::cout << FormatJson(*report);
    return kExitOk;
  }
  const v1::ModelVersion& model = runner->model();
  std::cout << FormatReport(*report, {model.classes().begin(), model.classes().end()}, terminal);
  if (arguments.preview) std::cout << "\n" << preview;
  return kExitOk;
}

// The sums over a folder's scans.
struct Totals {
  std::vector<absl::Duration> round_trips;
  uint64_t num_points = 0;
  std::map<int, ClassCount> counts;
  std::optional<std::vector<BoxCount>> boxes;
  std::optional<Agreement> agreement;
  size_t num_written = 0;
  bool has_tensors = false;
  std::vector<std::string> failures;

  void Add(const ScanReport& report, const std::vector<v1::ClassInfo>& classes) {
    round_trips.push_back(report.result.round_trip);
    num_points += report.num_points;
    num_written += report.written.size();
    has_tensors |= report.has_tensors;
    for (const ClassCount& count : report.classes) {
      ClassCount& sum =
          counts.try_emplace(count.id, ClassCount{count.id, count.name, count.color_rgb, 0, 0}).first->second;
      sum.num_points += count.num_points;
    }
    if (report.boxes) boxes = CountBoxes(*report.boxes, classes, boxes.value_or(std::vector<BoxCount>()));
    if (!report.agreement) return;
    if (!agreement) agreement.emplace();
    agreement->Add(*report.agreement);
  }

  std::vector<ClassCount> Sorted() const {
    std::vector<ClassCount> sorted;
    for (const auto& [id, count] : counts) {
      sorted.push_back(count);
      sorted.back().share = static_cast<double>(count.num_points) / static_cast<double>(num_points);
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const ClassCount& a, const ClassCount& b) { return a.num_points > b.num_points; });
    return sorted;
  }
};

void PrintTotals(Totals totals, absl::Duration elapsed, const std::vector<v1::ClassInfo>& classes,
                 const Terminal& terminal) {
  if (totals.round_trips.empty()) return;
  std::sort(totals.round_trips.begin(), totals.round_trips.end());
  const double scans = static_cast<double>(totals.round_trips.size());
  std::cout << totals.round_trips.size() << " scans, " << WithSeparators(totals.num_points) << " points in "
            << FormatTime(elapsed) << " (" << absl::StrFormat("%.1f", scans / absl::ToDoubleSeconds(elapsed))
            << " scans/s), round trip p50 " << FormatTime(totals.round_trips[totals.round_trips.size() / 2])
            << ", longest " << FormatTime(totals.round_trips.back()) << "\n";
  if (totals.boxes) {
    std::cout << FormatBoxCounts(*totals.boxes, terminal);
  } else if (!totals.has_tensors) {  // shapes of tensors differ from scan to scan
    std::cout << FormatClasses(totals.Sorted(), totals.agreement, totals.num_points, classes, terminal);
  }
  if (totals.num_written > 0) std::cout << "\nwrote " << totals.num_written << " files\n";
}

int RunMany(const InferArguments& arguments, const Terminal& terminal, const std::vector<ScanJob>& jobs,
            ScanRunner* runner) {
  const auto& listed = runner->model().classes();
  const std::vector<v1::ClassInfo> classes(listed.begin(), listed.end());
  Totals totals;
  std::mutex mutex;  // guards totals and stdout
  std::atomic<size_t> next{0};
  ProgressBar progress(jobs.size(), terminal.err_is_tty);
  const absl::Time start = absl::Now();
  const auto work = [&] {
    for (size_t i = next++; i < jobs.size(); i = next++) {
      const absl::StatusOr<ScanReport> report = runner->Run(jobs[i], nullptr);
      const std::lock_guard<std::mutex> lock(mutex);
      if (report.ok()) {
        totals.Add(*report, classes);
        if (arguments.json) std::cout << FormatJson(*report) << std::flush;
      } else {
        totals.failures.push_back(absl::StrCat(jobs[i].input, ": ", Advise(report.status())));
        if (arguments.json) std::cout << FormatJsonError(jobs[i].input, report.status()) << std::flush;
      }
      progress.ScanDone(report.ok());
    }
  };
  std::vector<std::thread> threads;
  const size_t num_threads = std::min(jobs.size(), static_cast<size_t>(arguments.concurrency));
  for (size_t i = 0; i < num_threads; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  progress.Finish();
  const std::vector<std::string> failures = totals.failures;
  if (!arguments.json) PrintTotals(std::move(totals), absl::Now() - start, classes, terminal);
  if (failures.empty()) return kExitOk;
  std::cerr << "voxserve-client: " << failures.size() << " of " << jobs.size() << " scans failed:\n";
  for (const std::string& failure : failures) std::cerr << "  " << failure << "\n";
  return kExitFailure;
}

std::vector<Flag> ListFlags() {
  static InferArguments arguments;
  return arguments.Flags();
}

absl::Status Check(const InferArguments& arguments, Terminal* terminal) {
  if (arguments.model.empty()) return absl::InvalidArgumentError("--model is missing");
  if (arguments.paths.inputs.empty()) return absl::InvalidArgumentError("no scan given");
  if (arguments.sample == 0 && (arguments.sample_start != 0 || arguments.sample_use != "return")) {
    return absl::InvalidArgumentError("--sample_start and --sample_use need --sample");
  }
  if (!arguments.fields.empty()) {
    if (const auto spec = ParseFieldSpec(arguments.fields); !spec.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--fields: ", spec.status().message()));
    }
  }
  if (arguments.color == "always") {
    terminal->out_color = terminal->out_unicode = true;
  } else if (arguments.color == "never") {
    terminal->out_color = false;
  } else if (arguments.color != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("--color is '", arguments.color, "', must be auto, always or never"));
  }
  return absl::OkStatus();
}

// Checks the parts of the command line that depend on the model. If the model is not ready, its outputs are not known,
// and the server reports the error.
absl::Status CheckFor(const v1::ModelVersion& model, const InferArguments& arguments,
                      const std::vector<ScanJob>& jobs) {
  if (model.state() != v1::MODEL_STATE_READY) return absl::OkStatus();
  if (AsksTensors(model, arguments)) {
    if (!arguments.paths.truth.empty() || !arguments.paths.picture.empty() || arguments.preview) {
      return absl::InvalidArgumentError(absl::StrCat("--truth, --picture and --preview show labels or boxes, but ",
                                                     model.name(), " answers with tensors here"));
    }
    const std::string& prefix = jobs.front().save;
    if (prefix.empty() || IsTensorFile(prefix)) return CheckTensorFiles(jobs, model, arguments.Tensors().names);
    return absl::InvalidArgumentError(
        absl::StrCat("--save ", prefix, ": ", model.name(), " answers with tensors, written as .npy"));
  }
  if (arguments.tensor_type != "float32") {
    return absl::InvalidArgumentError(absl::StrCat("--tensor_type needs --outputs, as ", model.name(), " answers with ",
                                                   model.has_boxes() ? "boxes" : "labels"));
  }
  if (model.has_boxes() && !arguments.paths.truth.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--truth compares labels, but ", model.name(), " answers with boxes"));
  }
  const std::string& save = jobs.front().save;  // all have the same extension
  if (save.empty() || (model.has_boxes() ? IsBoxFile(save) : IsLabelFile(save))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--save ", save, ": ", model.name(), " answers with ",
                   model.has_boxes() ? "boxes, written as .json, .csv or .npy" : "labels, written as .npy or .label"));
}

int Run(const std::vector<std::string>& words, const Terminal& detected) {
  InferArguments arguments;
  Terminal terminal = detected;
  if (absl::Status status = ParseArguments(words, arguments.Flags(), &arguments.paths.inputs); !status.ok()) {
    return FailUsage("infer", status);
  }
  if (absl::Status status = Check(arguments, &terminal); !status.ok()) return FailUsage("infer", status);
  const absl::StatusOr<std::vector<ScanJob>> jobs = PlanJobs(arguments.paths);
  if (!jobs.ok()) return absl::IsNotFound(jobs.status()) ? Fail(jobs.status()) : FailUsage("infer", jobs.status());
  if (jobs->size() > 1 && arguments.preview) {
    return FailUsage("infer", absl::InvalidArgumentError("--preview needs a single scan, but there are several"));
  }
  if (jobs->size() > 1)
    arguments.connection.num_channels = static_cast<int>(std::min<int64_t>(arguments.concurrency, 4));
  const absl::StatusOr<std::unique_ptr<Client>> client = arguments.connection.Connect();
  if (!client.ok()) return Fail(client.status());
  absl::StatusOr<v1::ModelVersion> model = (*client)->GetModel(arguments.model, arguments.version);
  if (!model.ok()) return Fail(model.status());
  if (absl::Status status = CheckFor(*model, arguments, *jobs); !status.ok()) return FailUsage("infer", status);
  ScanRunner runner(arguments, terminal, client->get(), *std::move(model));
  return jobs->size() == 1 ? RunOne(arguments, terminal, jobs->front(), &runner)
                           : RunMany(arguments, terminal, *jobs, &runner);
}

}  // namespace

Command InferCommand() {
  return {
      {"infer", "--model NAME SCAN|FOLDER... [FLAGS]", "labels scans, or finds boxes in them",
       "Reads scans, sends them to the server, and prints the number of points in each class, or the boxes found (for "
       "a model with both, the boxes), and the time of each stage. "
       "It reads KITTI .bin (float32 x, y, z, intensity), nuScenes .pcd.bin (intensity 0..255 and ring), PCD (ascii, "
       "binary, binary_compressed), PLY and NPY ([N, C] or structured); --fields describes any other layout.\n"
       "A folder means the scans in it. Several are in flight at once. Failures are listed at the end and make the "
       "exit code 1.",
       "  voxserve-client infer --model minkunet scan.bin --preview\n"
       "  voxserve-client infer --model minkunet scan.bin --save labels.npy --picture bev.png\n"
       "  voxserve-client infer --model minkunet drive/ --save labels/ --picture pictures/\n"
       "  voxserve-client infer --model centerpoint scan.bin --save boxes.json --picture bev.png\n"
       "  voxserve-client infer --model minkunet scan.bin --truth scan.truth.u8      # how many agree\n"
       "  voxserve-client infer --model minkunet waymo.bin \\\n"
       "      --fields x:f32,y:f32,z:f32,intensity:f32,-:f32                          # five floats a point\n"
       "  voxserve-client infer --model minkunet scans/ --json | jq .round_trip_ms\n"},
      ListFlags,
      Run};
}

}  // namespace voxserve::client
