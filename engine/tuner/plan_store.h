#pragma once

// PlanStore keeps tuned plans in memory and on disk. There are two places on disk. Find takes the plan of the first
// place that has a valid one:
//
//   <plan_dir>/<first 16 digits of the model's digest>/<device>-<dtype>.textproto     "plan_dir"
//   <version folder>/plans/<device>-<dtype>.textproto                                 "model"
//
// The file name has the device's name in lower case, with dashes for everything but letters and digits: "NVIDIA H200"
// is "nvidia-h200". The key in the file tells apart devices with the same file name.
//
// A plan that was found or saved stays in memory while the store lives, even if its file disappears.
//
// Thread-safe.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

class PlanStore {
 public:
  struct Found {
    std::shared_ptr<const TunedPlan> plan;
    // "plan_dir" or "model": the place of the plan's file, also if the plan was found in memory. "tuned": the plan was
    // saved in memory, but its file could not be written.
    std::string source;
    std::filesystem::path path;  // the plan's file; empty if there is none
  };

  // plan_dir: "" for none. The first Save creates the folder.
  explicit PlanStore(std::filesystem::path plan_dir);
  PlanStore(const PlanStore&) = delete;
  PlanStore& operator=(const PlanStore&) = delete;

  // Returns the plan of this key, or nothing. Damaged files and files with another key are ignored: `problems` gets a
  // line for each, with its path and the problem or difference.
  std::optional<Found> Find(const PlanKey& key, const std::filesystem::path& version_folder,
                            std::vector<std::string>& problems);

  // Keeps the plan in memory and writes it to plan_dir, or to the version folder if there is no plan_dir. An older plan
  // is replaced. Returns the file's path. A reader never sees a part of the file, and the file is on disk when Save
  // returns. If it cannot be written, Save returns the reason (FAILED_PRECONDITION: neither folder is given), and the
  // plan is still kept in memory. A plan that could not be read back is not kept; Save then returns INVALID_ARGUMENT.
  absl::StatusOr<std::filesystem::path> Save(std::shared_ptr<const TunedPlan> plan,
                                             const std::filesystem::path& version_folder);

  // Returns the error that Save would return because a file cannot be created there, so that nobody searches for a plan
  // in vain. Creates the folder, and leaves no file.
  absl::Status CheckSave(const PlanKey& key, const std::filesystem::path& version_folder) const;

 private:
  struct Place {
    std::string source;
    std::filesystem::path path;
  };

  std::vector<Place> PlacesOf(const PlanKey& key, const std::filesystem::path& version_folder) const;
  Found* InMemory(const PlanKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // null: none

  const std::filesystem::path plan_dir_;
  // Held by Save, so that saves run one after the other, and memory and disk end up with the same plan.
  absl::Mutex saving_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  std::vector<Found> found_ ABSL_GUARDED_BY(mutex_);  // one per key
};

}  // namespace voxserve
