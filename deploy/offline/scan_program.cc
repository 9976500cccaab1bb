#include "deploy/offline/scan_program.h"

#include <ostream>

#include "absl/status/statusor.h"
#include "deploy/offline/scan_files.h"

namespace voxserve::offline {

Flag ModelFlag(std::string* model) {
  return StringFlag(
      "model", "FOLDER[:VERSION]",
      "The model's folder, which holds version folders. Without VERSION it is the newest version. Required.", model);
}

Flag ThreadsFlag(ScanOptions* options) {
  return IntFlag("threads", "N",
                 "The number of CPU threads that compute. Without this flag it is as many as the process may use.", 1,
                 4096, &options->threads);
}

Flag FieldsFlag(ScanOptions* options) {
  return ListFlag("fields", "SPEC",
                  "The layout of the points in the file, if its extension does not tell; see voxserve-client help "
                  "infer for its form.",
                  &options->fields);
}

Flag HelpFlag(ScanOptions* options) { return ActionFlag("help", "Prints this page.", true, &options->wants_help); }

Flag VersionFlag(ScanOptions* options) {
  return ActionFlag("version", "Prints the version.", true, &options->wants_version);
}

absl::Status CheckScans(const ScanOptions& options) {
  if (options.scans.empty()) return absl::InvalidArgumentError("no scan given: files, or folders of scans");
  return CheckFields(options.fields);
}

int RunOnScans(const std::string& program, const absl::Status& parsed, const ScanOptions& options,
               const std::function<std::string()>& help, const Surroundings& surroundings,
               const std::function<absl::Status(const std::vector<client::ScanJob>& jobs)>& work) {
  if (!parsed.ok()) return FailUsage(program, parsed, *surroundings.err);
  if (options.wants_help) {
    *surroundings.out << help() << std::flush;
    return kExitOk;
  }
  if (options.wants_version) {
    *surroundings.out << program << " " << surroundings.version << std::endl;
    return kExitOk;
  }
  const absl::StatusOr<std::vector<client::ScanJob>> jobs = client::PlanJobs({.inputs = options.scans});
  if (absl::IsInvalidArgument(jobs.status())) return FailUsage(program, jobs.status(), *surroundings.err);
  return Finish(
      program, [&] { return jobs.ok() ? work(*jobs) : jobs.status(); }, *surroundings.err);
}

}  // namespace voxserve::offline
