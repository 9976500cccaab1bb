#include "client/cpp/cli/infer_arguments.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cpp/io/box_file.h"
#include "client/cpp/io/label_file.h"
#include "client/cpp/io/point_cloud_reader.h"
#include "client/cpp/io/tensor_file.h"

namespace voxserve::client {
namespace {

// Names what the model answers if no tensors are asked for.
const char* KindsOf(const v1::ModelVersion& model) {
  if (HasBoxesAlone(model)) return "boxes";
  return model.has_boxes() ? "labels and boxes" : "labels";
}

}  // namespace

std::optional<FarthestPoints> InferArguments::Sample() const {
  if (sample == 0) return std::nullopt;
  return FarthestPoints{.num_points = static_cast<uint32_t>(sample),
                        .start_index = static_cast<uint32_t>(sample_start),
                        .use = sample_use == "network" ? FarthestPoints::Use::kNetwork : FarthestPoints::Use::kReturn};
}

WantedTensors InferArguments::Tensors() const {
  return {.names = absl::StrSplit(outputs, ',', absl::SkipEmpty()),
          .type = tensor_type == "float16" ? v1::ELEMENT_TYPE_FLOAT16 : v1::ELEMENT_TYPE_FLOAT32};
}

std::vector<Flag> InferArguments::Flags() {
  return connection.Flags({
      StringFlag("model", "NAME", "The model that gets the scans; voxserve-client models lists the models. Required.",
                 &model),
      IntFlag("version", "N", "The model's version. Without this flag it is the newest that is ready.", 1, INT64_MAX,
              &version),
      StringFlag("boxes_model", "NAME", "A second model, whose boxes are printed and drawn over the labels of --model.",
                 &boxes_model),
      ListFlag("fields", "SPEC",
               "The layout of the points in the file, if its extension does not tell: NAME:TYPE[*SCALE][+SHIFT] for "
               "each value in order, separated by commas, with types i8 u8 i16 u16 i32 u32 f16 f32 f64. The name - "
               "skips a value. In PCD, PLY and structured NPY files, which name their fields, an entry sets the "
               "scale and shift of its field. NEW=OLD[*SCALE][+SHIFT] gives a field another name, such as "
               "intensity=reflectivity. The flag may be given several times.",
               &fields),
      BoolFlag(
          "compact",
          "The command sends coordinates and intensities in 16 bits: half the bytes, and points within half a step "
          "(1 mm, or the extent by 65534) of where they are.",
          &compact),
      StringFlag("save", "FILE|FOLDER",
                 "The command writes labels to a .npy (uint8 or uint16 [N]) or .label file (SemanticKITTI's uint32), "
                 "and boxes to a .json, .csv or .npy file (structured: class_id, score, x, y, z, length, width, "
                 "height, yaw, velocity_x, velocity_y). Of a model with both, .npy has the labels. A folder gets one "
                 ".npy file for each scan.",
                 &paths.save),
      StringFlag("outputs", "NAME,...",
                 "The command asks for these tensors of the model in place of labels and boxes. Without this flag it "
                 "asks for all tensors of a model that has neither labels nor boxes. --save OUT.npy or a folder writes "
                 "each tensor to OUT.NAME.npy, and a tensor of sites to OUT.NAME.coordinates.npy and OUT.NAME.unit.npy "
                 "too.",
                 &outputs),
      ChoiceFlag("tensor_type", {"float32", "float16"}, "The tensors' values have this type.", &tensor_type),
      StringFlag("picture", "FILE|FOLDER",
                 "The command draws the scan from above, with its labels or boxes, to a .png file. A folder gets one "
                 "file for each scan.",
                 &paths.picture),
      StringFlag("truth", "FILE|FOLDER",
                 "The command compares the labels with labels made by people: one byte for each point (255 = none), "
                 ".label or .npy. A folder has SCAN.truth.u8, SCAN.u8, SCAN.label or SCAN.npy.",
                 &paths.truth),
      IntFlag("sample", "N",
              "The server also selects the N farthest points of each scan: every next point is the farthest from those "
              "before it. --json prints their indices.",
              1, UINT32_MAX, &sample),
      IntFlag("sample_start", "INDEX", "The selection of --sample starts with this point.", 0, UINT32_MAX,
              &sample_start),
      ChoiceFlag("sample_use", {"return", "network"},
                 "With return the answer lists the points of --sample. With network the network sees only these "
                 "points, and the others get no label.",
                 &sample_use),
      BoolFlag("preview",
               "The command shows the scan from above in the terminal, with its labels or boxes. It takes "
               "one scan only.",
               &preview),
      BoolFlag("json", "The command prints one line of JSON for each scan instead of tables.", &json),
      ChoiceFlag("color", {"auto", "always", "never"},
                 "The output has colours. auto uses them in a terminal, unless NO_COLOR is set.", &color),
      IntFlag("concurrency", "N", "Up to N scans are in flight at once.", 1, 256, &concurrency),
  });
}

bool AsksTensors(const v1::ModelVersion& model, const InferArguments& arguments) {
  const bool is_ready = model.state() == v1::MODEL_STATE_READY;
  return !arguments.outputs.empty() ||
         (is_ready && model.tensors_size() > 0 && !model.has_labels() && !model.has_boxes());
}

bool HasBoxesAlone(const v1::ModelVersion& model) { return model.has_boxes() && !model.has_labels(); }

absl::Status CheckInfer(const InferArguments& arguments, Terminal* terminal) {
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
  }
  return absl::OkStatus();
}

absl::Status CheckInferFor(const v1::ModelVersion& model, const std::optional<v1::ModelVersion>& boxes_model,
                           const InferArguments& arguments, const std::vector<ScanJob>& jobs) {
  if (boxes_model && boxes_model->state() == v1::MODEL_STATE_READY && !boxes_model->has_boxes()) {
    return absl::InvalidArgumentError(absl::StrCat("--boxes_model: ", boxes_model->name(), " has no boxes"));
  }
  if (model.state() != v1::MODEL_STATE_READY) return absl::OkStatus();
  if (boxes_model && (AsksTensors(model, arguments) || model.has_boxes())) {
    return absl::InvalidArgumentError(
        absl::StrCat("--boxes_model is for a --model with labels alone, but ", model.name(), " answers with ",
                     AsksTensors(model, arguments) ? "tensors" : KindsOf(model), " here"));
  }
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
    return absl::InvalidArgumentError(
        absl::StrCat("--tensor_type needs --outputs, as ", model.name(), " answers with ", KindsOf(model)));
  }
  if (HasBoxesAlone(model) && !arguments.paths.truth.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--truth compares labels, but ", model.name(), " answers with boxes"));
  }
  // The files of all jobs have the same extension. A model with labels and boxes writes all that PlanJobs takes.
  const std::string& save = jobs.front().save;
  if (save.empty() || (!HasBoxesAlone(model) && IsLabelFile(save)) || (model.has_boxes() && IsBoxFile(save))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--save ", save, ": ", model.name(), " answers with ",
      HasBoxesAlone(model) ? "boxes, written as .json, .csv or .npy" : "labels, written as .npy or .label"));
}

}  // namespace voxserve::client
