#include "server/identity/authoriser.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/base/status_macros.h"
#include "server/identity/small_file.h"

namespace voxserve {
namespace {

constexpr std::string_view kScheme = "bearer ";
// A longer header holds no token of this server (HashToken bounds their length), so it need not be hashed.
constexpr size_t kMaxHeaderBytes = 8192;

absl::Status Unauthenticated(const std::string& why, std::string_view reason) {
  return WithReason(absl::UnauthenticatedError(why), reason);
}

absl::Status Denied(const std::string& why, std::string_view reason = error_reason::kScopeTooSmall) {
  return WithReason(absl::PermissionDeniedError(why), reason);
}

absl::Status CheckAccess(Access access, const Token& token) {
  switch (access) {
    case Access::kOpen:
    case Access::kAny:
      return absl::OkStatus();
    case Access::kInfer:
      if (!token.model_globs.empty()) return absl::OkStatus();
      return Denied(absl::StrCat("the token \"", token.name, "\" has no scope infer:MODEL"));
    case Access::kModels:
      if (!token.model_globs.empty() || token.is_admin) return absl::OkStatus();
      return Denied(absl::StrCat("the token \"", token.name, "\" has neither a scope infer:MODEL nor admin"));
    case Access::kAdmin:
      if (token.is_admin) return absl::OkStatus();
      return Denied(absl::StrCat("the token \"", token.name, "\" lacks the scope admin"));
    case Access::kMetrics:
      break;
  }
  if (token.reads_metrics) return absl::OkStatus();
  return Denied(absl::StrCat("the token \"", token.name, "\" lacks the scope metrics"));
}

}  // namespace

absl::Status Caller::CheckModel(std::string_view model) const {
  if (token == nullptr && !is_anonymous) return absl::OkStatus();
  if (token == nullptr) return Unauthenticated("models need a token", error_reason::kMissingToken);
  if (token->FitsModel(model)) return absl::OkStatus();
  return Denied(absl::StrCat("the token \"", token->name, "\" has no scope infer: that fits the model's name"));
}

bool Caller::SeesModel(std::string_view model) const {
  if (token == nullptr) return !is_anonymous;
  return token->is_admin || token->FitsModel(model);
}

absl::Status Caller::CheckPriority(int priority, int priority_levels) const {
  const int highest = std::min(highest_priority(), priority_levels - 1);
  if (priority >= highest) return absl::OkStatus();
  return Denied(absl::StrCat("priority is ", priority, "; the token \"", token->name, "\" may ask for ", highest,
                             " or less urgent ones"),
                error_reason::kPriorityTooHigh);
}

absl::Status Caller::CheckMayDoAll(const Caller& before) const {
  if (token == before.token || token == nullptr || before.token == nullptr) return absl::OkStatus();
  for (const std::string& glob : before.token->model_globs) {
    if (std::find(token->model_globs.begin(), token->model_globs.end(), glob) == token->model_globs.end()) {
      return Denied(absl::StrCat("the token \"", token->name, "\" has lost the scope infer:", glob));
    }
  }
  if (before.token->is_admin && !token->is_admin) {
    return Denied(absl::StrCat("the token \"", token->name, "\" has lost the scope admin"));
  }
  if (highest_priority() > before.highest_priority()) {
    return Denied(absl::StrCat("the token \"", token->name, "\" may ask for priority ", highest_priority(),
                               " or less urgent ones by now, no longer for ", before.highest_priority()),
                  error_reason::kPriorityTooHigh);
  }
  return absl::OkStatus();
}

absl::Status Caller::Narrowed(absl::Status status) const {
  if (token == nullptr || token->is_admin || ReasonOf(status) != error_reason::kModelNotFound) return status;
  return WithReason(absl::NotFoundError("there is no such model"), error_reason::kModelNotFound);
}

absl::StatusOr<std::unique_ptr<Authoriser>> Authoriser::Create(std::string path) {
  ASSIGN_OR_RETURN(std::string text, ReadSmallFile("auth_tokens", path));
  ASSIGN_OR_RETURN(TokenList tokens, ParseTokens(path, text));
  return std::unique_ptr<Authoriser>(new Authoriser(std::move(path), std::move(text), std::move(tokens)));
}

Authoriser::Authoriser(std::string path, std::string text, TokenList tokens)
    : path_(std::move(path)), last_text_(std::move(text)) {
  Use(std::move(tokens));
}

void Authoriser::Use(TokenList tokens) {
  TokensByDigest by_digest;
  for (const std::shared_ptr<const Token>& token : tokens) by_digest.emplace(token->digest, token);
  absl::MutexLock lock(&mutex_);
  tokens_ = std::make_shared<const TokenList>(std::move(tokens));
  by_digest_ = std::make_shared<const TokensByDigest>(std::move(by_digest));
}

void Authoriser::Refresh() {
  absl::StatusOr<std::string> text = ReadSmallFile("auth_tokens", path_);
  absl::Status status = text.status();
  if (status.ok()) {
    if (*text == last_text_) {
      last_problem_.clear();
      seen_text_.reset();
      return;
    }
    // A changed file is used only if the next Refresh reads the same text, since a half-written file may grant too
    // much: "infer:a*" is the beginning of "infer:a*b".
    if (seen_text_ != *text) {
      seen_text_ = *std::move(text);
      return;
    }
    absl::StatusOr<TokenList> tokens = ParseTokens(path_, *text);
    status = tokens.status();
    if (status.ok()) {
      last_text_ = *std::move(text);
      last_problem_.clear();
      Log(LogLevel::kInfo, "tokens loaded anew", {{"tokens", tokens->size()}});
      Use(*std::move(tokens));
      return;
    }
  }
  const std::string problem(status.message());
  if (problem == last_problem_) return;
  last_problem_ = problem;
  Log(LogLevel::kWarning, "the file of tokens has changed and cannot be used: the tokens before stay",
      {{"error", problem}});
}

absl::StatusOr<std::shared_ptr<const Token>> Authoriser::Identify(std::optional<std::string_view> authorization) const {
  if (!authorization.has_value()) {
    return Unauthenticated("this server asks for a token: send authorization: Bearer TOKEN",
                           error_reason::kMissingToken);
  }
  const std::string_view header = *authorization;
  if (header.size() > kMaxHeaderBytes ||
      !absl::StartsWithIgnoreCase(absl::string_view(header.data(), header.size()),
                                  absl::string_view(kScheme.data(), kScheme.size()))) {
    return Unauthenticated("the authorization is not of the form: Bearer TOKEN", error_reason::kMissingToken);
  }
  const std::string_view text = header.substr(kScheme.size());
  const Sha256Digest digest = Sha256Of(text);
  std::shared_ptr<const TokenList> tokens;
  {
    absl::MutexLock lock(&mutex_);
    tokens = tokens_;
  }
  // Neither the loop nor the comparison ends early, so that the time does not tell which line matches, or how many
  // bytes of it.
  std::shared_ptr<const Token> found;
  for (const std::shared_ptr<const Token>& token : *tokens) {
    if (CRYPTO_memcmp(token->digest.data(), digest.data(), digest.size()) == 0) found = token;
  }
  if (found == nullptr) return Unauthenticated("the token is unknown to this server", error_reason::kUnknownToken);
  return found;
}

absl::StatusOr<std::shared_ptr<const Token>> Authoriser::Admit(Access access,
                                                               std::optional<std::string_view> authorization) const {
  absl::StatusOr<std::shared_ptr<const Token>> known = Identify(authorization);
  if (access == Access::kOpen) return known.ok() ? *std::move(known) : nullptr;
  ASSIGN_OR_RETURN(std::shared_ptr<const Token> token, std::move(known));
  RETURN_IF_ERROR(CheckAccess(access, *token));
  return token;
}

absl::StatusOr<Caller> Authoriser::LookAgain(Caller caller) const {
  if (caller.token == nullptr) return caller;
  const Token& before = *caller.token;
  std::shared_ptr<const TokensByDigest> tokens;
  {
    absl::MutexLock lock(&mutex_);
    tokens = by_digest_;
  }
  const auto found = tokens->find(before.digest);
  // A name stands for a client: under another name its limits would be another client's.
  if (found == tokens->end() || found->second->name != before.name) {
    return Unauthenticated(absl::StrCat("the token \"", before.name, "\" was taken back while the call was open"),
                           error_reason::kUnknownToken);
  }
  const Token& now = *found->second;
  RETURN_IF_ERROR(CheckAccess(caller.access, now));
  if (now.share < before.share) {
    return Denied(absl::StrCat("the token \"", now.name, "\" has share=", now.share, " by now, had ", before.share,
                               " when the call began; begin a new one"),
                  error_reason::kShareReduced);
  }
  caller.token = found->second;
  return caller;
}

}  // namespace voxserve
