#include "deploy/calibrate/options.h"

#include "deploy/calibrate/output_version.h"
#include "engine/base/flags.h"
#include "engine/base/status_macros.h"

namespace voxserve::calibrate {
namespace {

std::vector<Flag> Flags(Options* options, std::string* model) {
  return {
      offline::ModelFlag(model),
      StringFlag("output", "FOLDER",
                 "The version folder that is written, MODEL/VERSION. A server that serves MODEL takes it as a new "
                 "version. Required.",
                 &options->output),
      BoolFlag("overwrite", "An older folder of this name is replaced.", &options->may_overwrite),
      NumberFlag("agreement", "SHARE",
                 "Layers return to float until this share of the labels, or of the boxes, agrees with the "
                 "float version.",
                 0.5, 1, &options->agreement),
      MaybeEmptyFlag("float_nodes", "NAME,...",
                     "The layers that stay in float from the beginning: names of nodes (convolutions and linear "
                     "layers), first for the layers that read the points, last for those before the outputs.",
                     &options->float_nodes),
      BoolFlag("layer_costs",
               "What each layer alone costs is measured and printed. This takes most of the time; "
               "--layer_costs=false measures it only if layers must return to float.",
               &options->measures_layers),
      StringFlag("scales", "FILE.json",
                 "Scales that another tool found: a JSON object with a number for each node. The scans are then only "
                 "compared.",
                 &options->scales),
      IntFlag("hold_out", "N",
              "The last N scans are compared, and not calibrated on. Without this flag it is a tenth of the scans.", 1,
              100000, &options->hold_out),
      offline::ThreadsFlag(options),
      IntFlag("max_scans", "N", "At most N scans are read. If there are more, N of them are chosen evenly.", 1, 100000,
              &options->max_scans),
      offline::FieldsFlag(options),
      offline::HelpFlag(options),
      offline::VersionFlag(options),
  };
}

}  // namespace

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& words) {
  Options options;
  std::string model;
  RETURN_IF_ERROR(ParseFlags(words, Flags(&options, &model), &options.scans));
  if (options.wants_help || options.wants_version) return options;
  ASSIGN_OR_RETURN(options.model, offline::ParseModelArgument(model));
  if (options.output.empty()) {
    return absl::InvalidArgumentError(
        "--output is missing: the version folder to write, for example models/minkunet/2");
  }
  RETURN_IF_ERROR(VersionOf(options.output).status());
  RETURN_IF_ERROR(offline::CheckScans(options));
  return options;
}

std::string HelpText() {
  Options defaults;
  std::string model;
  return FormatHelp(
             "voxserve-calibrate",
             {.synopsis = "--model FOLDER[:VERSION] --output FOLDER SCAN|FOLDER... [FLAGS]",
              .summary = "makes a version of a model that multiplies in 8 bits",
              .description =
                  "Runs the model in float32 on the CPU over your scans, and chooses for each value of the network the "
                  "scale by which it is stored in 8 bits with the least error. Then it compares the answers with the "
                  "float version's on scans that it did not calibrate on, and returns the worst layers to float until "
                  "the answers agree. It prints what each layer costs, and writes a version folder with the scales in "
                  "weights.safetensors and a config.textproto of its own. There is no training. The scans should be "
                  "like those of later requests; a dozen of each kind is enough.",
              .examples =
                  "  voxserve-calibrate --model models/minkunet --output models/minkunet/2 scans/\n"
                  "  voxserve-calibrate --model models/minkunet:1 --output int8/minkunet/1 --agreement 0.995 "
                  "--hold_out 5 scans/\n"
                  "  voxserve-calibrate --model models/minkunet --output models/minkunet/2 --scales scales.json "
                  "scan.pcd\n"},
             Flags(&defaults, &model)) +
         "\nExit codes: 0 done, 1 something failed, 2 wrong usage,\n130 ended by Ctrl-C; nothing is written then.\n";
}

}  // namespace voxserve::calibrate
