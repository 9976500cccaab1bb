#include "client/cpp/cli/commands.h"

// The commands `load` and `unload` of voxserve-client.

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace voxserve::client {
namespace {

struct VersionArguments {
  Connection connection{.timeout = absl::Minutes(5)};  // a large model takes long to load
  int64_t version = 0;

  std::vector<Flag> FlagsWith(const char* version_help) {
    return connection.AdminFlags({IntFlag("version", "N", version_help, 1, INT64_MAX, &version)});
  }
};

struct LoadArguments : VersionArguments {
  std::vector<Flag> Flags() {
    return FlagsWith(
        "The version to load, whatever the version policy is. Without this flag the server loads the versions that "
        "the policy selects.");
  }
};

struct UnloadArguments : VersionArguments {
  std::vector<Flag> Flags() {
    return FlagsWith(
        "The version to unload. Without this flag the server unloads all versions, including those that are added "
        "later.");
  }
};

// Runs the command of these Arguments. call(client, name, version, timeout) returns versions; say(name, versions)
// returns a line about them.
template <typename Arguments, typename Call, typename Say>
int RunOnVersions(absl::string_view command, const std::vector<std::string>& words, const Call& call, const Say& say) {
  Arguments arguments;
  std::vector<std::string> names;
  if (absl::Status status = ParseFlags(words, arguments.Flags(), &names); !status.ok()) {
    return FailUsage(command, status);
  }
  if (names.size() != 1) {
    return FailUsage(command,
                     absl::InvalidArgumentError(names.empty() ? "the model's name is missing" : "give one model only"));
  }
  const absl::StatusOr<std::unique_ptr<Client>> client = arguments.connection.Connect();
  if (!client.ok()) return Fail(client.status());
  const absl::StatusOr<std::vector<int64_t>> versions = call(**client, names[0], arguments.version);
  if (!versions.ok()) return Fail(versions.status());
  std::cout << say(names[0], *versions) << "\n";
  return kExitOk;
}

std::string Counted(const std::vector<int64_t>& versions) {
  return absl::StrCat(versions.size() == 1 ? "version " : "versions ", absl::StrJoin(versions, ", "));
}

int RunLoad(const std::vector<std::string>& words, const Terminal& /*terminal*/) {
  return RunOnVersions<LoadArguments>(
      "load", words,
      [](Client& client, const std::string& name, int64_t version) { return client.LoadModel(name, version); },
      [](const std::string& name, const std::vector<int64_t>& versions) {
        return versions.empty() ? absl::StrCat(name, ": no version is in service")
                                : absl::StrCat(name, ": ", Counted(versions), " in service");
      });
}

int RunUnload(const std::vector<std::string>& words, const Terminal& /*terminal*/) {
  return RunOnVersions<UnloadArguments>(
      "unload", words,
      [](Client& client, const std::string& name, int64_t version) { return client.UnloadModel(name, version); },
      [](const std::string& name, const std::vector<int64_t>& versions) {
        return absl::StrCat(name, ": ", Counted(versions), " taken out of service");
      });
}

}  // namespace

Command LoadCommand() {
  return {
      {"load", "NAME [FLAGS]", "makes the server load a model, or its changed versions",
       "The server reads the model's folder in its repository, loads new versions and those whose files have changed, "
       "and swaps them in when they are warm. It answers requests meanwhile. If a version is broken, all its problems "
       "are printed, and the versions in service stay.",
       "  voxserve-client load minkunet\n"
       "  voxserve-client load minkunet --version 3\n"},
      ListFlags<LoadArguments>,
      RunLoad};
}

Command UnloadCommand() {
  return {{"unload", "NAME [FLAGS]", "takes a model, or one version of it, out of service",
           "Requests that the server has accepted are answered; the model's memory is freed after the last of them. "
           "The model stays out of service until voxserve-client load, even if the server polls its repository.",
           "  voxserve-client unload minkunet --version 2\n"
           "  voxserve-client unload minkunet\n"},
          ListFlags<UnloadArguments>,
          RunUnload};
}

}  // namespace voxserve::client
