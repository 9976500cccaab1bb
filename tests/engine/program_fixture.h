#pragma once

// ProgramTest is the fixture of tests that run one program, on each device.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "tests/engine/device_runner.h"

namespace voxserve {

class ProgramTest : public testing::TestWithParam<support::Device> {
 protected:
  // Whoever overrides it calls it first, and goes on only where there is a runner_ then.
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    auto runner = DeviceRunner::Create({.device = GetParam()});
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  // Makes program_ of the graph, in float32. A GPU runs it by the default plan.
  void Compile(const Graph& graph, bool is_deterministic = false) {
    Variant variant{.device = GetParam(), .is_deterministic = is_deterministic};
    if (GetParam() == support::Device::kCuda) variant.plan = kDefaultCudaConvPlan;
    auto program = runner_->Compile(graph, variant);
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = *std::move(program);
  }

  std::unique_ptr<DeviceRunner> runner_;
  Program program_;  // ends before the runner, which has its weights
};

}  // namespace voxserve
