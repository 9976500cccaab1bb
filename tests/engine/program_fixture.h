#pragma once

// Fixtures of tests that run one program. RunnerTest starts the runner that the test asks for. ProgramTest has one on
// each device.

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "engine/runtime/memory_budget.h"
#include "tests/engine/device_runner.h"

namespace voxserve {

class RunnerTest : public testing::Test {
 protected:
  // Starts a runner in place of the one before, and ends that one's program. budget: it limits the runner's host
  // memory, which is not counted if it is null.
  void StartRunner(DeviceRunner::Options options, std::unique_ptr<MemoryBudget> budget = nullptr) {
    program_ = Program();
    runner_.reset();
    budget_ = std::move(budget);
    options.memory_budget = budget_.get();
    auto runner = DeviceRunner::Create(options);
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  // Each outlives those below: the runner takes memory from the budget, and has the program's weights.
  std::unique_ptr<MemoryBudget> budget_;
  std::unique_ptr<DeviceRunner> runner_;
  Program program_;
};

class ProgramTest : public RunnerTest, public testing::WithParamInterface<support::Device> {
 protected:
  // Whoever overrides it calls it first, and goes on only where there is a runner_ then.
  void SetUp() override {
    SKIP_WITHOUT(GetParam());
    StartRunner({.device = GetParam()});
  }

  // Makes program_ of the graph, in float32. A GPU runs it by the default plan.
  void Compile(const Graph& graph, bool is_deterministic = false) {
    Variant variant{.device = GetParam(), .is_deterministic = is_deterministic};
    if (GetParam() == support::Device::kCuda) variant.plan = kDefaultCudaConvPlan;
    auto program = runner_->Compile(graph, variant);
    ASSERT_TRUE(program.ok()) << program.status();
    program_ = *std::move(program);
  }
};

}  // namespace voxserve
