#include "client/cpp/cli/commands.h"

namespace voxserve::client {

std::vector<Command> AllCommands() {
  return {InferCommand(),  ModelsCommand(), HealthCommand(), LoadCommand(),
          UnloadCommand(), TuneCommand(),   BenchCommand()};
}

}  // namespace voxserve::client
