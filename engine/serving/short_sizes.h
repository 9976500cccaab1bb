#pragma once

// ShortSizes knows which sizes of requests have been shown to run within a time, by model. A prediction alone does not
// show that: it says nothing about requests that are much larger than those that ran, and points that are scattered
// take many times as long as dense ones.
//
// - Shown: a request of at most the points of one that ran within the time; of at most 4 times as many if it is also
//   predicted to be short. A prediction for small requests may be far too high after large ones have run, and a request
//   that is refused for it would never correct it.
// - Surprises: after a request that took 4 times as long or longer, requests of half its points or more are not shown
//   for a minute, whatever runs meanwhile. So nobody can show dense clouds first, to let scattered ones follow.
//
// Thread-safe. Times are of SteadyNow.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace voxserve {

class ShortSizes {
 public:
  // limit: the time within which a short request runs.
  explicit ShortSizes(absl::Duration limit) : limit_(limit) {}

  // Records that a request ran alone, for this time.
  void Observe(const std::string& model, int64_t points, absl::Duration time, absl::Time now) {
    absl::MutexLock lock(&mutex_);
    Sizes& sizes = models_[model];
    if (time >= kSurprise * limit_) {
      sizes.blocked_from = std::min(now < sizes.blocked_until ? sizes.blocked_from : kNoPoints, points / 2);
      sizes.blocked_until = now + kBlocked;
      sizes.shown = std::min(sizes.shown, points / 2 / kRange);
    } else if (time <= limit_ && !sizes.IsBlocked(points, now)) {
      sizes.shown = std::max(sizes.shown, points);
    }
  }

  bool IsShown(const std::string& model, int64_t points, bool is_predicted, absl::Time now) const {
    absl::MutexLock lock(&mutex_);
    const auto sizes = models_.find(model);
    return sizes != models_.end() && points / (is_predicted ? kRange : 1) <= sizes->second.shown &&
           !sizes->second.IsBlocked(points, now);
  }

 private:
  static constexpr int64_t kRange = 4;
  static constexpr int64_t kSurprise = 4;
  static constexpr absl::Duration kBlocked = absl::Minutes(1);
  static constexpr int64_t kNoPoints = std::numeric_limits<int64_t>::max();

  struct Sizes {
    int64_t shown = 0;                 // the most points of a request that ran within the time
    int64_t blocked_from = kNoPoints;  // until blocked_until
    absl::Time blocked_until = absl::InfinitePast();

    bool IsBlocked(int64_t points, absl::Time now) const { return now < blocked_until && points >= blocked_from; }
  };

  const absl::Duration limit_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Sizes> models_ ABSL_GUARDED_BY(mutex_);  // of the models that have served
};

}  // namespace voxserve
