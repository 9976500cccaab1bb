#include "client/cpp/cli/commands.h"

#include "client/cpp/cli/bench/bench_command.h"
#include "client/cpp/cli/health_command.h"
#include "client/cpp/cli/infer_command.h"
#include "client/cpp/cli/load_commands.h"
#include "client/cpp/cli/models_command.h"
#include "client/cpp/cli/tune_command.h"

namespace voxserve::client {

std::vector<Command> AllCommands() {
  return {InferCommand(),  ModelsCommand(), HealthCommand(), LoadCommand(),
          UnloadCommand(), TuneCommand(),   BenchCommand()};
}

}  // namespace voxserve::client
