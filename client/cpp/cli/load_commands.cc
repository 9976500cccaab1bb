#include "client/cpp/cli/load_commands.h"

// The commands `load` and `unload` of voxserve-client.

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace voxserve::client {
namespace {

struct VersionArguments {
  Connection connection{.timeout = absl::Minutes(5)};  // a large model takes long to load
  int64_t version = 0;

  std::vector<Flag> Flags(const char* version_help) {
    std::vector<Flag> flags = {IntFlag("version", "N", version_help, 1, INT64_MAX, &version)};
    for (Flag& flag : connection.AdminFlags()) flags.push_back(std::move(flag));
    return flags;
  }
};

constexpr char kLoadVersion[] =
    "The version to load, whatever the version policy. Default: those that the policy selects.";
constexpr char kUnloadVersion[] = "The version to unload. Default: all versions, including ones that are added later.";

template <const char* kVersionHelp>
std::vector<Flag> ListFlags() {
  static VersionArguments arguments;  // a help page only reads the flags, but they must point somewhere
  return arguments.Flags(kVersionHelp);
}

// Runs one of the two commands. call(client, name, version, timeout) returns versions; say(name, versions) returns a
// line about them.
template <typename Call, typename Say>
int Run(absl::string_view command, const char* version_help, const std::vector<std::string>& words, const Call& call,
        const Say& say) {
  VersionArguments arguments;
  std::vector<std::string> names;
  if (absl::Status status = ParseArguments(words, arguments.Flags(version_help), &names); !status.ok()) {
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
  return Run(
      "load", kLoadVersion, words,
      [](Client& client, const std::string& name, int64_t version) { return client.LoadModel(name, version); },
      [](const std::string& name, const std::vector<int64_t>& versions) {
        return versions.empty() ? absl::StrCat(name, ": no version is in service")
                                : absl::StrCat(name, ": ", Counted(versions), " in service");
      });
}

int RunUnload(const std::vector<std::string>& words, const Terminal& /*terminal*/) {
  return Run(
      "unload", kUnloadVersion, words,
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
      ListFlags<kLoadVersion>,
      RunLoad};
}

Command UnloadCommand() {
  return {{"unload", "NAME [FLAGS]", "takes a model, or one version of it, out of service",
           "Requests that the server has accepted are answered; the model's memory is freed after the last of them. "
           "The model stays out of service until voxserve-client load, even if the server polls its repository.",
           "  voxserve-client unload minkunet --version 2\n"
           "  voxserve-client unload minkunet\n"},
          ListFlags<kUnloadVersion>,
          RunUnload};
}

}  // namespace voxserve::client
