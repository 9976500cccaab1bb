#pragma once

// A Server on free ports whose FakeEngine is controlled by the test.

#include <memory>

#include "tests/integration/server_test.h"
#include "tests/server/fake_engine.h"

namespace voxserve {

class FakeServerTest : public ServerTest {
 protected:
  void Start(FakeEngine::Options engine_options = {}, const Options& options = {}) {
    StartServer(options, [&](EngineObserver* observer, MemoryBudget*) -> absl::StatusOr<std::unique_ptr<Engine>> {
      engine_options.observer = observer;
      auto engine = std::make_unique<FakeEngine>(engine_options);
      engine_ = engine.get();
      return engine;
    });
    if (server_ != nullptr && !engine_options.loading) AwaitReady();
  }

  FakeEngine* engine_ = nullptr;  // Owned by server_.
};

}  // namespace voxserve
