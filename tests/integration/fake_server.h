#pragma once

// FakeServerTest is the fixture of tests of a Server with a FakeEngine (tests/server/fake_engine.h), which the test
// controls. The server runs in this process on free ports.

#include <memory>

#include "tests/integration/server_test.h"
#include "tests/server/fake_engine.h"

namespace voxserve {

class FakeServerTest : public ServerTest {
 protected:
  // Starts the server. Waits until it is ready, unless engine_options.loading is true.
  void Start(FakeEngine::Options engine_options = {}, const Options& options = {}) {
    StartServer(options, [&](EngineObserver* observer, MemoryBudget*) -> absl::StatusOr<std::unique_ptr<Engine>> {
      engine_options.observer = observer;
      auto engine = std::make_unique<FakeEngine>(engine_options);
      engine_ = engine.get();
      return engine;
    });
    if (server_ != nullptr && !engine_options.loading) AwaitReady();
  }

  FakeEngine* engine_ = nullptr;  // server_ owns the engine
};

}  // namespace voxserve
