#pragma once

// SilentObserver is an EngineObserver that ignores every event. Tests override the methods that they need.

#include <string_view>

#include "engine/serving/admission/engine_observer.h"

namespace voxserve {

class SilentObserver : public EngineObserver {
 public:
  void OnStage(std::string_view, Stage, absl::Duration) override {}
  void OnBatch(std::string_view, int64_t, int64_t, int64_t) override {}
  void OnPoints(std::string_view, const PointCounts&) override {}
  void OnNotFiniteBoxes(std::string_view, int64_t) override {}
  void OnDeviceTime(std::string_view, absl::Duration) override {}
  void OnPrediction(std::string_view, absl::Duration, absl::Duration) override {}
  void OnStuckBatch(std::string_view, std::string_view) override {}
  void OnDropped(std::string_view, DropReason) override {}
  void OnQueueDepth(std::string_view, int64_t) override {}
  void OnModelState(std::string_view, int64_t, bool) override {}
  void OnModelRemoved(std::string_view, int64_t) override {}
  void OnGridFallback() override {}
  void OnRerun() override {}
  void OnReplay() override {}
  void OnGeometryFallback() override {}
  void OnPlanLookup(bool) override {}
  void OnPlan(std::string_view, int64_t, std::string_view, std::string_view) override {}
  void OnDeviceBusy(std::string_view, std::string_view, absl::Duration) override {}
  void OnDeviceMemory(std::string_view, std::string_view, int64_t) override {}
};

}  // namespace voxserve
