#include <iostream>

#include "absl/time/clock.h"
#include "client/cpp/cli/commands.h"

namespace voxserve::client {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(200);

struct HealthArguments {
  Connection connection{.timeout = absl::Seconds(5)};
  absl::Duration wait = absl::ZeroDuration();

  std::vector<Flag> Flags() {
    return connection.Flags({DurationFlag("wait",
                                          "The command asks again for up to this time, until the server is ready. "
                                          "Without this flag it asks once.",
                                          &wait)});
  }
};

int RunHealth(const std::vector<std::string>& words, const Terminal&) {
  HealthArguments arguments;
  std::vector<std::string> positionals;
  if (absl::Status status = ParseFlags(words, arguments.Flags(), &positionals); !status.ok()) {
    return FailUsage("health", status);
  }
  if (!positionals.empty()) return FailUsage("health", absl::InvalidArgumentError("it takes no arguments"));
  const absl::StatusOr<std::unique_ptr<Client>> client = arguments.connection.Connect();
  if (!client.ok()) return Fail(client.status());
  const absl::Time end = absl::Now() + arguments.wait;
  while (true) {
    const absl::StatusOr<Health> health = (*client)->CheckHealth();
    if (health.ok() && *health == Health::kServing) {
      std::cout << "serving" << std::endl;
      return kExitOk;
    }
    if (absl::Now() < end) {
      absl::SleepFor(kPollInterval);
      continue;
    }
    if (!health.ok()) return Fail(health.status());
    std::cout << "not serving" << std::endl;
    return kExitFailure;
  }
}

}  // namespace

Command HealthCommand() {
  return {
      {"health", "[--address HOST:PORT] [--wait TIME]", "tells whether the server is ready",
       "Asks the server by the gRPC health checking protocol, and exits with 0 if it is ready, with 1 if it is not or "
       "does not answer. It can be used as a container's health check.",
       "  voxserve-client health\n"
       "  voxserve-client health --wait 60s     # after starting a server: returns when it is ready\n"
       "  HEALTHCHECK CMD [\"voxserve-client\", \"health\"]     # in a Dockerfile\n"},
      ListFlags<HealthArguments>,
      RunHealth};
}

}  // namespace voxserve::client
