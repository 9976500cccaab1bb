#pragma once

// Authoriser knows the tokens of --auth_tokens (token_file.h) and finds the one that a request shows. A Caller says who
// makes a call, and what this client may do.
//
// - A request's token is compared by its SHA-256 with every line of the file, in constant time.
// - Refresh reads the file again. A new text comes into use when two calls of Refresh in a row find it, since a writer
//   may be at work during the first. If the new text is bad, the old tokens stay in use, and one log line gives the
//   reason. A token that is removed from the file admits no new call. LookAgain finds the open calls that must end.
// - Errors: UNAUTHENTICATED with reason MISSING_TOKEN (no token, or not in the form "Bearer TOKEN") or UNKNOWN_TOKEN;
//   PERMISSION_DENIED with reason SCOPE_TOO_SMALL, PRIORITY_TOO_HIGH or SHARE_REDUCED. No error says which models
//   exist.
// - Threads: thread-safe. Refresh is called by one thread at a time.

#include <grpcpp/security/auth_context.h>

#include <map>
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

// The access that a method or page requires.
enum class Access : uint8_t {
  kOpen,     // nothing: every client may use it
  kAny,      // any token
  kInfer,    // a token with any scope infer:GLOB; Caller::CheckModel then checks the model
  kModels,   // a token with any scope infer:GLOB, or with the scope admin
  kAdmin,    // a token with the scope admin
  kMetrics,  // a token with the scope metrics
};

struct Caller {
  // The client for which the call's work counts: "token:NAME", "certificate:NAME" or an address.
  std::string client;
  std::shared_ptr<const Token> token;  // null: the server has no tokens, or the method is open
  bool is_anonymous = false;           // the server has tokens, and an open method's caller shows none of them
  Access access = Access::kOpen;       // what the called method requires
  // The connection, if its client had to show a certificate; else null.
  std::shared_ptr<const grpc::AuthContext> connection = nullptr;

  // Checks that the caller may use the model. Returns UNAUTHENTICATED or PERMISSION_DENIED (SCOPE_TOO_SMALL) if not.
  absl::Status CheckModel(std::string_view model) const;
  // Returns whether the caller may know of the model: lists then show it, and the health service answers for it.
  bool SeesModel(std::string_view model) const;
  // Checks the priority of a request; 0 is the most urgent. priority_levels: the model's number of levels. Returns
  // PERMISSION_DENIED (PRIORITY_TOO_HIGH) if the priority is more urgent than the token allows.
  absl::Status CheckPriority(int priority, int priority_levels) const;
  // Checks that the caller may do all that `before`, the same caller earlier, was allowed to. Returns PERMISSION_DENIED
  // if not.
  absl::Status CheckMayDoAll(const Caller& before) const;
  // Returns the status. If it is MODEL_NOT_FOUND and the caller may not see all models, the message is replaced, since
  // the original one lists other models' names.
  absl::Status Narrowed(absl::Status status) const;
  int highest_priority() const { return token == nullptr ? 0 : token->highest_priority; }
  double share() const { return token == nullptr ? 1 : token->share; }
};

class Authoriser {
 public:
  // Returns the errors of ReadSmallFile and ParseTokens.
  static absl::StatusOr<std::unique_ptr<Authoriser>> Create(std::string path);

  // Reads the file again, and uses its new tokens as the first comment says. Call it regularly, from one thread at a
  // time.
  void Refresh() ABSL_LOCKS_EXCLUDED(mutex_);

  // Returns the token that the request shows, or UNAUTHENTICATED. authorization: the request's HTTP header or gRPC
  // metadata of this name, "Bearer TOKEN"; nullopt if the request has none.
  absl::StatusOr<std::shared_ptr<const Token>> Identify(std::optional<std::string_view> authorization) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Identifies the token and checks that it has the required access. With Access::kOpen it returns no error: a request
  // without a known token gets null.
  absl::StatusOr<std::shared_ptr<const Token>> Admit(Access access, std::optional<std::string_view> authorization) const
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Looks for the caller's token in the file again. Returns the caller with the token as it is now; it is the same
  // object if its file has not changed. Returns UNAUTHENTICATED if the file has no such token under this name any more,
  // and PERMISSION_DENIED if the token has lost the access to the method, or has a smaller share.
  absl::StatusOr<Caller> LookAgain(Caller caller) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using TokensByDigest = std::map<Sha256Digest, std::shared_ptr<const Token>>;

  Authoriser(std::string path, std::string text, TokenList tokens);
  void Use(TokenList tokens) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string path_;
  // Only Refresh uses the members below.
  std::string last_text_;                 // the file's text in use
  std::optional<std::string> seen_text_;  // the new text that the last Refresh found, not yet in use
  std::string last_problem_;              // the problem that was logged last; empty after a good text
  mutable absl::Mutex mutex_;
  std::shared_ptr<const TokenList> tokens_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const TokensByDigest> by_digest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace voxserve
