#include "client/cpp/api/service_config.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace voxserve::client {
namespace {

// gRPC takes the first policy that it knows: version 1.51 knows no weighted_round_robin.
constexpr char kBalancing[] = R"("loadBalancingConfig": [{"weighted_round_robin": {}}, {"round_robin": {}}])";

std::string Retries(int max_attempts) {
  std::vector<std::string> names;
  for (const char* method : {"Infer", "ListModels", "GetModel"}) {
    names.push_back(absl::StrCat(R"({"service": "voxserve.v1.InferenceService", "method": ")", method, "\"}"));
  }
  return absl::StrCat(R"("methodConfig": [{"name": [)", absl::StrJoin(names, ", "),
                      R"(], "retryPolicy": {"maxAttempts": )", max_attempts,
                      R"(, "initialBackoff": "0.1s", "maxBackoff": "1s", "backoffMultiplier": 2, )",
                      R"("retryableStatusCodes": ["UNAVAILABLE"]}}])");
}

}  // namespace

bool NamesServers(absl::string_view address) {
  return absl::StartsWith(address, "dns:") || absl::StartsWith(address, "ipv4:") || absl::StartsWith(address, "ipv6:");
}

std::string ServiceConfig(absl::string_view address, int max_attempts) {
  std::vector<std::string> parts;
  if (NamesServers(address)) parts.emplace_back(kBalancing);
  if (max_attempts > 1) parts.push_back(Retries(max_attempts));
  return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
}

}  // namespace voxserve::client
