#include <algorithm>
#include <atomic>
#include <cmath>
#include <iostream>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cpp/cli/box_report.h"
#include "client/cpp/cli/commands.h"
#include "client/cpp/cli/infer_arguments.h"
#include "client/cpp/cli/printable.h"
#include "client/cpp/cli/progress_bar.h"
#include "client/cpp/cli/report.h"
#include "client/cpp/cli/scan_jobs.h"
#include "client/cpp/io/box_file.h"
#include "client/cpp/io/field_spec.h"
#include "client/cpp/io/label_file.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "client/cpp/io/tensor_file.h"
#include "client/cpp/view/count_text.h"
#include "client/cpp/view/picture.h"
#include "client/cpp/view/preview.h"

namespace voxserve::client {
namespace {

constexpr float kMaxPlausibleIntensity = 1.5f;  // for a field with unit 1

// Runs the scans of one command line and writes the outputs that the command line names. It asks the model for tensors
// if they are named or the model has nothing else, otherwise for labels, with which a model that has both answers its
// boxes too, or for boxes.
// Thread-safe.
class ScanRunner {
 public:
  // boxes_model: the model that --boxes_model names, if any.
  ScanRunner(const InferArguments& arguments, const Terminal& terminal, Client* client, v1::ModelVersion model,
             std::optional<v1::ModelVersion> boxes_model)
      : arguments_(arguments),
        terminal_(terminal),
        client_(client),
        model_(std::move(model)),
        boxes_model_(std::move(boxes_model)) {}

  const v1::ModelVersion& model() const { return model_; }

  // preview: receives the terminal picture if the command line asks for it.
  absl::StatusOr<ScanReport> Run(const ScanJob& job, std::string* preview) {
    absl::StatusOr<ScanReport> report = RunScan(job, preview);
    if (report.ok()) {
      WarnOfValues(job.input, report->result);
      WarnOnce(job.input, RangeWarning(report->result), &has_warned_of_range_);
      WarnOnce(job.input, NotFiniteWarning(report->result), &has_warned_of_not_finite_);
    }
    return report;
  }

 private:
  absl::StatusOr<ScanReport> RunScan(const ScanJob& job, std::string* preview) {
    absl::StatusOr<PointCloud> cloud = ReadPointCloud(job.input, {.fields = arguments_.fields});
    if (!cloud.ok()) return cloud.status();
    WarnOfIntensity(job.input, *cloud);
    if (arguments_.compact) {
      if (absl::Status status = CompactOrWarn(job.input, &*cloud); !status.ok()) return status;
    }
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
    const PointCloud kept = is_drawn || boxes_model_ ? *cloud : PointCloud();
    std::vector<uint16_t> labels;
    const absl::Status status = HasBoxesAlone(model_)
                                    ? Detect(options, *std::move(cloud), job, &report)
                                    : Segment(options, *std::move(cloud), truth, job, &report, &labels);
    if (!status.ok()) return status;
    if (boxes_model_) {
      if (absl::Status over = DetectOver(kept, &report); !over.ok()) return over;
    }
    if (is_drawn) {
      absl::StatusOr<AnnotatedScan> scan = report.has_labels
                                               ? AnnotatedScan::WithLabels(kept, std::move(labels), model_)
                                               : AnnotatedScan::WithBoxes(kept, *report.boxes, model_);
      if (!scan.ok()) return scan.status();
      if (report.has_labels && report.boxes) scan->AddBoxes(*report.boxes, model_);
      if (report.over) scan->AddBoxes(report.over->boxes, *boxes_model_);
      if (absl::Status drawing = Draw(job, *scan, &report, preview); !drawing.ok()) return drawing;
    }
    return report;
  }

  absl::Status Segment(const InferOptions& options, PointCloud cloud, const std::vector<uint16_t>& truth,
                       const ScanJob& job, ScanReport* report, std::vector<uint16_t>* labels) const {
    absl::StatusOr<Segmentation> result = client_->Infer(options, std::move(cloud));
    if (!result.ok()) return result.status();
    MakePrintable(&*result);
    if (result->boxes) MakeBoxesPrintable(&*result->boxes);
    const std::vector<v1::ClassInfo> classes(model_.classes().begin(), model_.classes().end());
    report->classes = CountClasses(result->labels, result->ignore_label, classes);
    if (!job.truth.empty()) {
      report->agreement = Compare(result->labels, truth, result->ignore_label, classes);
      report->agreement->file = job.truth;
    }
    if (!job.save.empty()) {
      const absl::Status status = IsLabelFile(job.save) || !result->boxes
                                      ? WriteLabels(job.save, result->labels, result->bytes_per_label)
                                      : WriteBoxes(job.save, *result->boxes);
      if (!status.ok()) return status;
      report->written.push_back(job.save);
    }
    *labels = std::move(result->labels);
    report->has_labels = true;
    report->boxes = std::move(result->boxes);
    report->result = *std::move(result);
    return absl::OkStatus();
  }

  absl::Status Detect(const InferOptions& options, PointCloud cloud, const ScanJob& job, ScanReport* report) const {
    absl::StatusOr<Detections> result = client_->Detect(options, std::move(cloud));
    if (!result.ok()) return result.status();
    MakePrintable(&*result);
    MakeBoxesPrintable(&result->boxes);
    if (!job.save.empty()) {
      if (absl::Status status = WriteBoxes(job.save, result->boxes); !status.ok()) return status;
      report->written.push_back(job.save);
    }
    report->boxes = std::move(result->boxes);
    report->result = *std::move(result);
    return absl::OkStatus();
  }

  static void MakeBoxesPrintable(std::vector<Box>* boxes) {
    for (Box& box : *boxes) box.class_name = Printable(box.class_name);
  }

  // Asks the model that --boxes_model names for boxes.
  absl::Status DetectOver(const PointCloud& cloud, ScanReport* report) const {
    absl::StatusOr<Detections> result =
        client_->Detect({.model = boxes_model_->name(), .timeout = arguments_.connection.timeout}, cloud);
    if (!result.ok()) return result.status();
    MakePrintable(&*result);
    MakeBoxesPrintable(&result->boxes);
    report->over.emplace();
    report->over->classes.assign(boxes_model_->classes().begin(), boxes_model_->classes().end());
    report->over->boxes = std::move(result->boxes);
    report->over->result = *std::move(result);
    return absl::OkStatus();
  }

  absl::Status Tensors(const InferOptions& options, PointCloud cloud, const ScanJob& job, ScanReport* report) const {
    absl::StatusOr<Answer> result = client_->InferTensors(options, std::move(cloud));
    if (!result.ok()) return result.status();
    MakePrintable(&*result);
    report->result = *std::move(result);
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
    PictureText text = {.title = absl::StrCat(result.model, " v", result.version),
                        .lines = {job.input.substr(job.input.rfind('/') + 1),
                                  absl::StrCat(WithSeparators(report->num_points), " points, ",
                                               WithSeparators(result.counts.voxels()), " voxels")}};
    if (report->over) {
      const Answer& over = report->over->result;
      for (const Stage& stage : over.stages) server += stage.duration;
      text.lines.push_back(absl::StrCat("boxes by ", over.model, " v", over.version));
    }
    text.lines.push_back(absl::StrCat(FormatTime(server), " on ", result.device));
    if (absl::Status status = DrawPicture(scan, text).WritePng(job.picture); !status.ok()) return status;
    report->written.push_back(job.picture);
    return absl::OkStatus();
  }

  // Warns, once, of values that are not in the range that the model states.
  void WarnOfValues(const std::string& file, const Answer& answer) {
    if (answer.warnings.empty() || has_warned_.exchange(true)) return;
    const v1::FeatureWarning& warning = answer.warnings[0];
    std::cerr << "voxserve-client: warning: " << warning.feature() << " of " << file << " is " << warning.smallest()
              << " to " << warning.largest() << ", but " << model_.name() << " was trained on " << warning.range().low()
              << " to " << warning.range().high() << "; scale it with --fields " << warning.feature() << "="
              << warning.feature() << "*FACTOR, e.g. 0.00392 if 255 must be 1\n";
  }

  // Warns if there is a warning and *has_warned is false, which then becomes true.
  static void WarnOnce(const std::string& file, const std::string& warning, std::atomic<bool>* has_warned) {
    if (warning.empty() || has_warned->exchange(true)) return;
    std::cerr << "voxserve-client: warning: " << file << ": " << warning << "\n";
  }

  // Warns of the commonest cause of wrong results from networks that read intensity as 0..1 and state no range.
  void WarnOfIntensity(const std::string& file, const PointCloud& cloud) {
    const bool is_read = std::any_of(model_.features().begin(), model_.features().end(), [](const v1::FeatureInfo& f) {
      return f.name() == "intensity" && f.unit() == "1" && !f.has_range();
    });
    if (!is_read) return;
    const absl::StatusOr<std::vector<float>> values = FieldValues(cloud, "intensity");
    if (!values.ok()) return;
    float largest = 0;
    for (const float value : *values) largest = std::isfinite(value) ? std::max(largest, value) : largest;
    if (largest <= kMaxPlausibleIntensity || has_warned_.exchange(true)) return;
    std::cerr << "voxserve-client: warning: intensities of " << file << " reach " << largest << ", but "
              << model_.name() << " reads 0..1; scale them with --fields "
              << "intensity=intensity*0.00392 if they are 0 to 255\n";
  }

  const InferArguments& arguments_;
  const Terminal& terminal_;
  Client* const client_;
  const v1::ModelVersion model_;
  const std::optional<v1::ModelVersion> boxes_model_;
  std::atomic<bool> has_warned_{false};
  std::atomic<bool> has_warned_of_range_{false};
  std::atomic<bool> has_warned_of_not_finite_{false};
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
  std::optional<std::vector<BoxCount>> boxes_over;  // of --boxes_model
  std::optional<Agreement> agreement;
  size_t num_written = 0;
  bool has_labels = false;
  std::vector<std::string> failures;

  void Add(const ScanReport& report, const std::vector<v1::ClassInfo>& classes) {
    round_trips.push_back(report.result.round_trip);
    num_points += report.num_points;
    num_written += report.written.size();
    has_labels |= report.has_labels;
    for (const ClassCount& count : report.classes) {
      ClassCount& sum =
          counts.try_emplace(count.id, ClassCount{count.id, count.name, count.color_rgb, 0, 0}).first->second;
      sum.num_points += count.num_points;
    }
    if (report.boxes) boxes = CountBoxes(*report.boxes, classes, boxes.value_or(std::vector<BoxCount>()));
    if (report.over) {
      boxes_over = CountBoxes(report.over->boxes, report.over->classes, boxes_over.value_or(std::vector<BoxCount>()));
    }
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
  // Tensors have no sum: their shapes differ from scan to scan.
  if (totals.has_labels) {
    std::cout << FormatClasses(totals.Sorted(), totals.agreement, totals.num_points, classes, terminal);
  }
  if (totals.boxes) std::cout << FormatBoxCounts(*totals.boxes, terminal);
  if (totals.boxes_over) std::cout << FormatBoxCounts(*totals.boxes_over, terminal);
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

// Warns of new names in a field spec that the model does not read, as of a spelling mistake.
void WarnOfNewNames(const std::string& fields, const v1::ModelVersion& model) {
  if (fields.empty() || model.features().empty()) return;
  std::vector<std::string> read = {"x", "y", "z"};
  for (const v1::FeatureInfo& feature : model.features()) {
    if (std::find(read.begin(), read.end(), feature.name()) == read.end()) read.push_back(feature.name());
  }
  const absl::StatusOr<FieldSpec> spec = ParseFieldSpec(fields);
  if (!spec.ok()) return;
  for (const FieldRename& rename : spec->renames) {
    const bool is_source = std::any_of(spec->renames.begin(), spec->renames.end(),
                                       [&](const FieldRename& other) { return other.source == rename.name; });
    if (is_source || std::find(read.begin(), read.end(), rename.name) != read.end()) continue;
    std::cerr << "voxserve-client: warning: --fields names '" << rename.name << "', which " << model.name()
              << " does not read; it reads " << absl::StrJoin(read, ", ") << "\n";
  }
}

int RunInfer(const std::vector<std::string>& words, const Terminal& detected) {
  InferArguments arguments;
  Terminal terminal = detected;
  if (absl::Status status = ParseFlags(words, arguments.Flags(), &arguments.paths.inputs); !status.ok()) {
    return FailUsage("infer", status);
  }
  if (absl::Status status = CheckInfer(arguments, &terminal); !status.ok()) return FailUsage("infer", status);
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
  MakePrintable(&*model);
  std::optional<v1::ModelVersion> boxes_model;
  if (!arguments.boxes_model.empty()) {
    absl::StatusOr<v1::ModelVersion> found = (*client)->GetModel(arguments.boxes_model, 0);
    if (!found.ok()) return Fail(found.status());
    MakePrintable(&*found);
    boxes_model = *std::move(found);
  }
  if (absl::Status status = CheckInferFor(*model, boxes_model, arguments, *jobs); !status.ok()) {
    return FailUsage("infer", status);
  }
  WarnOfNewNames(arguments.fields, *model);
  ScanRunner runner(arguments, terminal, client->get(), *std::move(model), std::move(boxes_model));
  return jobs->size() == 1 ? RunOne(arguments, terminal, jobs->front(), &runner)
                           : RunMany(arguments, terminal, *jobs, &runner);
}

}  // namespace

Command InferCommand() {
  return {
      {"infer", "--model NAME SCAN|FOLDER... [FLAGS]", "labels scans, or finds boxes in them",
       "Reads scans, sends them to the server, and prints the number of points in each class, the boxes found, or both "
       "if the model has both, and the time of each stage. "
       "It reads KITTI .bin (float32 x, y, z, intensity), nuScenes .pcd.bin (intensity 0..255 and ring), PCD (ascii, "
       "binary, binary_compressed), PLY and NPY ([N, C] or structured); --fields describes any other layout.\n"
       "A folder means the scans in it. Several are in flight at once. Failures are listed at the end and make the "
       "exit code 1.",
       "  voxserve-client infer --model minkunet scan.bin --preview\n"
       "  voxserve-client infer --model minkunet scan.bin --save labels.npy --picture bev.png\n"
       "  voxserve-client infer --model minkunet drive/ --save labels/ --picture pictures/\n"
       "  voxserve-client infer --model centerpoint scan.bin --save boxes.json --picture bev.png\n"
       "  voxserve-client infer --model minkunet --boxes_model centerpoint scan.bin --picture bev.png\n"
       "  voxserve-client infer --model minkunet scan.bin --truth scan.truth.u8      # how many agree\n"
       "  voxserve-client infer --model minkunet waymo.bin \\\n"
       "      --fields x:f32,y:f32,z:f32,intensity:f32,-:f32                          # five floats a point\n"
       "  voxserve-client infer --model minkunet ouster.pcd --fields intensity=reflectivity\n"
       "  voxserve-client infer --model minkunet scans/ --json | jq .round_trip_ms\n"},
      ListFlags<InferArguments>,
      RunInfer};
}

}  // namespace voxserve::client
