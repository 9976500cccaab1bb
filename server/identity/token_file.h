#pragma once

// ParseTokens reads the text of the file of --auth_tokens. A line describes a token:
//
//   # name    SHA-256 of the token                                              scopes
//   truck-7   60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752  infer:minkunet,infer:center*  share=2
//   planner   fd61a03af4f77d870fc21e05e7e80678095c92d808cfb3b5c279ee04c74aca13  infer:*  priority=1
//   operator  a4e624d686e03ed2767c0abd85c14426b0b1157d2ce81d27bb4fe4f6f01d688a  admin,metrics
//
// - Scopes: `infer:GLOB` (requests and streams for models whose name GLOB matches; * and ? as in a shell), `admin`
//   (everything of AdminService, and the list of all models), `metrics` (/metrics and the status page).
// - priority=N: the most urgent priority that the token may ask for (0 is the most urgent, and the default). For a
//   model with at most N priority levels, the token may ask for the least urgent level.
// - share=X: the token's weight when clients share computing time, and a factor on the limits per client; 1 by default,
//   0.01 to 1000.
// - Empty lines, and lines that begin with #, are skipped. No file of the server contains a token itself.
//
// The functions are pure; any thread may call them.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace voxserve {

using Sha256Digest = std::array<uint8_t, 32>;

struct Token {
  std::string name;
  Sha256Digest digest = {};
  std::vector<std::string> model_globs;  // the GLOBs of scopes infer:GLOB
  bool is_admin = false;
  bool reads_metrics = false;
  int highest_priority = 0;
  double share = 1;

  // Returns true if the model's name matches at least one of model_globs.
  bool FitsModel(std::string_view model) const;
};

using TokenList = std::vector<std::shared_ptr<const Token>>;

// Returns INVALID_ARGUMENT if a line is bad, if a name or a digest appears twice, or if the text has no token. The
// message names the file, the first few bad lines and their errors. path: the file's name, for errors only.
absl::StatusOr<TokenList> ParseTokens(const std::string& path, std::string_view text);

// Returns true if the pattern matches the whole text: * matches any number of characters, ? matches one.
bool FitsGlob(std::string_view pattern, std::string_view text);

Sha256Digest Sha256Of(std::string_view text);

// Returns the 64 hexadecimal digits (SHA-256) that a line has for the token. Returns INVALID_ARGUMENT for a token that
// is too easy to guess (less than 16 characters) or that no HTTP header can carry.
absl::StatusOr<std::string> HashToken(std::string_view token);

}  // namespace voxserve
