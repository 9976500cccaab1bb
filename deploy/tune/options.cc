#include "deploy/tune/options.h"

#include "engine/base/flags.h"
#include "engine/base/status_macros.h"

namespace voxserve::tune {
namespace {

std::vector<Flag> Flags(Options* options, std::string* model) {
  return {
      offline::ModelFlag(model),
      StringFlag("plan_dir", "FOLDER",
                 "The plan is written to this folder, where voxserve --plan_dir finds it. Without this flag it is "
                 "written to plans/ in the version's own folder.",
                 &options->plan_dir),
      StringFlag("devices", "DEVICE",
                 "The device to search on: cpu, or a GPU as cuda:0. A plan is used on every device of the same name. "
                 "Without this flag it is the first GPU, or the CPU if there is no GPU.",
                 &options->devices),
      offline::ThreadsFlag(options),
      IntFlag("max_scans", "N", "The search uses at most N scans. If there are more, it chooses N of them evenly.", 1,
              100000, &options->max_scans),
      offline::FieldsFlag(options),
      IntFlag("repeats", "N", "Each measurement is repeated N times.", 1, 1000, &options->repeats),
      DurationFlag("time_limit", "After this time the search decides by what it has measured.", &options->time_limit),
      BoolFlag("allow_nondeterministic",
               "The search keeps candidates whose results differ from run to run in their last bits.",
               &options->may_be_nondeterministic),
      BoolFlag("dry_run", "The search prints its result, but writes no plan.", &options->is_dry_run),
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
  RETURN_IF_ERROR(offline::CheckScans(options));
  return options;
}

std::string HelpText() {
  Options defaults;
  std::string model;
  return FormatHelp(
             "voxserve-tune",
             {.synopsis = "--model FOLDER[:VERSION] SCAN|FOLDER... [FLAGS]",
              .summary = "searches for the fastest plan of a model on this machine's GPU (or CPU)",
              .description =
                  "Runs the model on your scans with many plans (how maps are searched, how matrix products are "
                  "grouped, which dataflow each convolution uses), and keeps the fastest for each size of scan. It "
                  "writes the plan to the place where voxserve finds it when it loads the model. Results equal those "
                  "of the default plan up to rounding: plans that deviate more are left out. The scans should be like "
                  "those of later requests; a dozen of each kind is enough. The device should do nothing else "
                  "meanwhile.",
              .examples =
                  "  voxserve-tune --model deploy/models/minkunet scans/\n"
                  "  voxserve-tune --model models/minkunet:2 --devices cuda:1 --plan_dir /var/lib/voxserve/plans "
                  "scans/ more/000000.bin\n"
                  "  voxserve-tune --model deploy/models/minkunet --dry_run --time_limit 1m scan.pcd\n"},
             Flags(&defaults, &model)) +
         "\nExit codes: 0 done (also if the default plan is the fastest), 1 something failed, 2 wrong "
         "usage,\n130 ended by Ctrl-C; nothing is written then.\n";
}

}  // namespace voxserve::tune
