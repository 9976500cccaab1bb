#pragma once

// Tuned plans in memory and on disk. Two places, the first that has a plan wins:
//
//   <plan_dir>/<first 16 digits of the model's digest>/<device>-<dtype>.textproto     "plan_dir"
//   <version folder>/plans/<device>-<dtype>.textproto                                 "model"
//
// with the device's name in lower case, all but letters and digits as dashes: "NVIDIA H200" is "nvidia-h200". What
// two devices of one file name are is in the key that the file holds.
//
// A plan that was found or saved stays in memory while the store lives, whatever becomes of its file.
//
// Thread-safe.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/tuner/tuned_plan.h"

namespace voxserve {

class PlanStore {
 public:
  struct Found {
    std::shared_ptr<const TunedPlan> plan;
    std::string source;          // "plan_dir" or "model", from memory too; "tuned": saved, but its file was not written
    std::filesystem::path path;  // of its file; empty where there is none
  };

  // "": no plan_dir. It is created by the first Save.
  explicit PlanStore(std::filesystem::path plan_dir);
  PlanStore(const PlanStore&) = delete;
  PlanStore& operator=(const PlanStore&) = delete;

  // The plan of this key, or nothing. Files that are damaged, or hold another key, are passed over: `problems` gets a
  // line for each, with its path and what is wrong or differs.
  std::optional<Found> Find(const PlanKey& key, const std::filesystem::path& version_folder,
                            std::vector<std::string>& problems);

  // Keeps the plan in memory and writes it to the first place there is, replacing what was there; the file is whole at
  // any moment, and on disk when this returns. Returns its path. Where it cannot be written the error says why, and
  // the plan is in memory all the same; one that could not be read back (INVALID_ARGUMENT) is not.
  absl::StatusOr<std::filesystem::path> Save(std::shared_ptr<const TunedPlan> plan,
                                             const std::filesystem::path& version_folder);

 private:
  struct Place {
    std::string source;
    std::filesystem::path path;
  };

  std::vector<Place> PlacesOf(const PlanKey& key, const std::filesystem::path& version_folder) const;
  Found* InMemory(const PlanKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // null: none

  const std::filesystem::path plan_dir_;
  absl::Mutex saving_ ABSL_ACQUIRED_BEFORE(mutex_);  // one Save at a time, so that memory and disk end alike
  absl::Mutex mutex_;
  std::vector<Found> found_ ABSL_GUARDED_BY(mutex_);  // one a key
};

}  // namespace voxserve
