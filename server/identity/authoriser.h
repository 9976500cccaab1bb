#pragma once

// Authoriser knows the tokens of --auth_tokens and finds the one that a request shows. A Caller says who makes a call,
// and what it may do.
//
// - Tokens are compared by their SHA-256, each with every line, in constant time.
// - Refresh reads the file again, and takes it over when two looks in a row find the same text, since a writer may be
//   at work. A bad one changes nothing, and a log line says why, once. Calls that are open go on as they began, so a
//   token that is taken out serves no further call.
// - Errors: UNAUTHENTICATED (MISSING_TOKEN, UNKNOWN_TOKEN); PERMISSION_DENIED (SCOPE_TOO_SMALL, PRIORITY_TOO_HIGH).
//   None of them says which models exist.
// - Threads: thread-safe. Refresh is called by one thread at a time.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/identity/token_file.h"

namespace voxserve {

enum class Access : uint8_t {
  kOpen,     // whoever connects
  kAny,      // any token
  kInfer,    // a token for some model; for which, Caller::CheckModel says
  kModels,   // likewise, or for operators
  kAdmin,    // a token for operators
  kMetrics,  // a token for metrics
};

struct Caller {
  std::string client;                  // whose share a call takes: "token:NAME", "certificate:NAME" or an address
  std::shared_ptr<const Token> token;  // null: the server has no tokens, or the method is open
  bool is_anonymous = false;           // the server has tokens, and the call of an open method shows none of them

  absl::Status CheckModel(std::string_view model) const;
  // Returns whether lists show the model and the health service answers for it.
  bool SeesModel(std::string_view model) const;
  // Checks the priority of a request. priority_levels: of the model.
  absl::Status CheckPriority(int priority, int priority_levels) const;
  // Returns the status, without the names of other models where the caller may not see all.
  absl::Status Narrowed(absl::Status status) const;
  int highest_priority() const { return token == nullptr ? 0 : token->highest_priority; }
  double share() const { return token == nullptr ? 1 : token->share; }
};

class Authoriser {
 public:
  // Returns the errors of ReadSmallFile and ParseTokens.
  static absl::StatusOr<std::unique_ptr<Authoriser>> Create(std::string path);

  void Refresh() ABSL_LOCKS_EXCLUDED(mutex_);

  // authorization: the header or metadata of that name, "Bearer TOKEN"; nothing if the request has none.
  absl::StatusOr<std::shared_ptr<const Token>> Identify(std::optional<std::string_view> authorization) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Identifies the token and checks that it may do this at all. Anybody may do what is kOpen; then the result is null
  // without a known token.
  absl::StatusOr<std::shared_ptr<const Token>> Admit(Access access, std::optional<std::string_view> authorization) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Authoriser(std::string path, std::string text, TokenList tokens);

  const std::string path_;
  // Only Refresh uses the members below.
  std::string last_text_;                 // the file's text in use
  std::optional<std::string> seen_text_;  // the text that the last look found, if it has not been taken over
  std::string last_problem_;              // the problem that was logged last; empty after a good look
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TokenList> tokens_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
