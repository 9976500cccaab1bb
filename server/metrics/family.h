#pragma once

// A Family is all series of one metric: it has the metric's name, its help text and the names of its labels, which
// clients of Prometheus know. A series is found, or made, by the values of the labels. Counters, Gauges and Histograms
// are the three kinds.
//
// - Ownership: the registry owns the families and their series, and must outlive all objects here. Two Family objects
//   of one name in one registry share their series.
// - Threads: the constructors and functions of families and the series are thread-safe. A RecordedHistogram is not:
//   its owner locks.

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/metrics/recent_histogram.h"

namespace voxserve {

template <typename Metric>
class Family {
 public:
  Family(prometheus::Registry* registry, const std::string& name, const std::string& help,
         std::vector<std::string> labels)
      : family_(Builder().Name(name).Help(help).Register(*registry)), labels_(std::move(labels)) {}

  // Returns the series with these values of the labels, in the order of their names. A counter or gauge begins at 0.
  // more: the bounds of a histogram.
  template <typename... More>
  Metric& With(std::initializer_list<std::string_view> values, const More&... more) {
    prometheus::Labels labels;
    size_t i = 0;
    for (const std::string_view value : values) labels.emplace(labels_[i++], value);
    return family_.Add(labels, more...);
  }
  void Remove(Metric* series) { family_.Remove(series); }
  std::vector<prometheus::MetricFamily> Collect() const { return family_.Collect(); }

 private:
  static auto Builder() {
    if constexpr (std::is_same_v<Metric, prometheus::Counter>) {
      return prometheus::BuildCounter();
    } else if constexpr (std::is_same_v<Metric, prometheus::Gauge>) {
      return prometheus::BuildGauge();
    } else {
      return prometheus::BuildHistogram();
    }
  }

  prometheus::Family<Metric>& family_;
  std::vector<std::string> labels_;
};

using Counters = Family<prometheus::Counter>;
using Gauges = Family<prometheus::Gauge>;

// RecordedHistogram is one series of a histogram, and beside it its observations of the last minute, for the status
// page.
class RecordedHistogram {
 public:
  // bounds: the upper ends of the buckets; must outlive the histogram.
  RecordedHistogram(prometheus::Histogram* series, const std::vector<double>* bounds)
      : series_(series), recent_(bounds) {}

  // Adds a value. A value that is not finite is left out, since it would stay in the sum for good. Values below 0
  // become 0; a clock that was set back would give one.
  void Observe(double value, absl::Time now);

  // Returns the observations of the last minute.
  Distribution Recent(absl::Time now) const { return recent_.Summarize(now); }
  // Returns the observations since the process started.
  prometheus::ClientMetric::Histogram Total() const { return series_->Collect().histogram; }

 private:
  prometheus::Histogram* series_;
  RecentHistogram recent_;
};

class Histograms {
 public:
  // bounds: as for RecordedHistogram.
  Histograms(prometheus::Registry* registry, const std::string& name, const std::string& help,
             std::vector<std::string> labels, const std::vector<double>* bounds)
      : family_(registry, name, help, std::move(labels)), bounds_(bounds) {}

  RecordedHistogram With(std::initializer_list<std::string_view> values) {
    return {&family_.With(values, *bounds_), bounds_};
  }

 private:
  Family<prometheus::Histogram> family_;
  const std::vector<double>* bounds_;
};

// Return the upper ends of the histograms' buckets.
const std::vector<double>* DurationBuckets();    // in seconds
const std::vector<double>* RequestBuckets();     // requests of a batch
const std::vector<double>* SizeBuckets();        // points or voxels of a batch
const std::vector<double>* ErrorRatioBuckets();  // |predicted - actual| / actual

}  // namespace voxserve
