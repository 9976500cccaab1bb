#include "client/cpp/api/channels.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/cpp/api/error.h"
#include "client/cpp/api/response.h"
#include "client/cpp/api/service_config.h"
#include "client/cpp/api/small_file.h"

namespace voxserve::client {
namespace {

// gRPC's size limit is for a whole message. This much of it is left for the parts of a request other than the points.
constexpr int64_t kEnvelopeBytes = 4096;
// Memory for what gRPC reads ahead of the answer that is wanted (a window of HTTP/2), for each call and once more for
// connections.
constexpr int64_t kReadAheadBytes = int64_t{16} << 20;

absl::StatusOr<std::string> ReadPem(absl::string_view option, const std::string& path, absl::string_view begin) {
  absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat(option, ": ", text.status().message()));
  // Without this check, gRPC would report a bad file as a server that cannot be reached.
  if (absl::StrContains(*text, begin)) return text;
  return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, " is no PEM file: it has no \"", begin, "\""));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(const Options& options) {
  if (options.tls_ca.empty()) return grpc::InsecureChannelCredentials();
  constexpr absl::string_view kCertificate = "-----BEGIN CERTIFICATE-----";
  grpc::SslCredentialsOptions ssl;
  absl::StatusOr<std::string> text = ReadPem("tls_ca", options.tls_ca, kCertificate);
  if (!text.ok()) return text.status();
  ssl.pem_root_certs = *std::move(text);
  if (!options.tls_certificate.empty()) {
    text = ReadPem("tls_certificate", options.tls_certificate, kCertificate);
    if (!text.ok()) return text.status();
    ssl.pem_cert_chain = *std::move(text);
    text = ReadPem("tls_key", options.tls_key, "PRIVATE KEY-----");
    if (!text.ok()) return text.status();
    ssl.pem_private_key = *std::move(text);
  }
  return grpc::SslCredentials(ssl);
}

std::shared_ptr<grpc::Channel> MakeChannel(const Options& options, const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                           const AnswerMemory& answer_memory, int index) {
  grpc::ChannelArguments arguments;
  arguments.SetResourceQuota(answer_memory.quota());
  arguments.SetMaxSendMessageSize(static_cast<int>(options.max_message_bytes));
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  // Channels with equal arguments share a connection unless each has its own pool.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt("voxserve.channel", index);
  // Finds a server that comes back within seconds. gRPC's defaults are up to 2 minutes between attempts, and 30 s
  // between look-ups of the server's name, which each attempt needs.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  arguments.SetServiceConfigJSON(ServiceConfig(address, options.max_attempts));
  // gRPC does not retry a request that is larger than this buffer. Its default of 256 KiB is less than most scans.
  arguments.SetInt(GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE, static_cast<int>(options.max_message_bytes));
  if (options.keepalive < absl::InfiniteDuration()) {
    const int milliseconds = static_cast<int>(absl::ToInt64Milliseconds(options.keepalive));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, milliseconds);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, milliseconds);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // pings go on while a call waits long for its answer
    // This is for later versions of gRPC, which send no keepalive ping while another ping is unanswered.
    arguments.SetInt("grpc.http2.ping_timeout_ms", milliseconds);
  }
  // A proxy from the environment cannot reach this machine's own address.
  if (IsThisMachine(address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

std::vector<std::shared_ptr<grpc::Channel>> MakeChannels(const Options& options,
                                                         const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                                         const AnswerMemory& answer_memory) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < options.num_channels; ++i) {
    channels.push_back(MakeChannel(options, options.address, credentials, answer_memory, i));
  }
  return channels;
}

// Returns the last part of a message such as "failed to connect to all addresses; last error: UNKNOWN:
// ipv4:127.0.0.1:8500: Connection refused".
absl::string_view Cause(absl::string_view message) {
  const size_t colon = message.rfind(": ");
  return colon == absl::string_view::npos ? message : message.substr(colon + 2);
}

// Returns a hint, after ": ", for a client that has reached a port of another protocol: gRPC's message then tells what
// answered. Returns "" if nothing does.
std::string WrongPortHint(absl::string_view message, bool has_tls) {
  const std::string lower = absl::AsciiStrToLower(message);
  if (absl::StrContains(lower, "http1.x server")) {
    return ": it answers HTTP/1 and no gRPC, as voxserve's --http_port does";
  }
  if (absl::StrContains(lower, "wrong version number") || absl::StrContains(lower, "wrong_version_number")) {
    return ": it answers without TLS; leave out tls_ca, or name the port that has TLS";
  }
  if (absl::StrContains(lower, "selected alpn")) return ": it has TLS and no gRPC, as voxserve's --http_port does";
  const bool was_closed = absl::StrContains(lower, "reset by peer") || absl::StrContains(lower, "socket closed") ||
                          absl::StrContains(lower, "endpoint clos");
  if (!was_closed) return "";
  return has_tls ? ": it closes the connection; if the server has no TLS, leave out tls_ca"
                 : ": it closes the connection; if the server has TLS, name its root certificates with tls_ca";
}

// Returns true if gRPC's message says that certificates or TLS versions do not match. A handshake that only broke off
// is no refusal, since it may succeed the next time.
bool IsTlsRefusal(absl::string_view message) {
  for (const absl::string_view words : {"SSL_ERROR_SSL", "TSI_PROTOCOL_FAILURE", "peer certificate"}) {
    if (absl::StrContains(message, words)) return true;
  }
  return false;
}

}  // namespace

absl::Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("timeout is ", absl::FormatDuration(timeout), ", must be positive"));
}

AnswerMemory::AnswerMemory(int64_t max_message_bytes) : max_message_bytes_(max_message_bytes) { AddCalls(0); }

void AnswerMemory::AddCalls(int number) {
  absl::MutexLock lock(&mutex_);
  num_calls_ += number;
  quota_.Resize(static_cast<size_t>(kReadAheadBytes + num_calls_ * (max_message_bytes_ + kReadAheadBytes)));
}

CallContext::CallContext(const Channels& channels, absl::Duration timeout) : memory_(channels.answer_memory()) {
  memory_->AddCalls(1);
  const Options& options = channels.options();
  if (timeout < absl::InfiniteDuration()) {
    set_deadline(std::chrono::system_clock::now() + absl::ToChronoMicroseconds(timeout));
  }
  if (!options.token.empty()) AddMetadata("authorization", absl::StrCat("Bearer ", options.token));
  if (!options.traceparent) return;
  const std::string traceparent = options.traceparent();
  if (!traceparent.empty() && IsHeaderValue(traceparent)) AddMetadata("traceparent", traceparent);
}

CallContext::~CallContext() { memory_->AddCalls(-1); }

absl::StatusOr<std::shared_ptr<Channels>> Channels::Create(Options options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  const absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = MakeCredentials(options);
  if (!credentials.ok()) return credentials.status();
  return std::shared_ptr<Channels>(new Channels(std::move(options), *credentials));
}

Channels::Channels(Options options, const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : options_(std::move(options)),
      answer_memory_(std::make_shared<AnswerMemory>(options_.max_message_bytes)),
      channels_(MakeChannels(options_, credentials, *answer_memory_)),
      // The channel connects with its first call.
      admin_(options_.AdminAddress().empty()
                 ? nullptr
                 : MakeChannel(options_, options_.AdminAddress(), credentials, *answer_memory_, -1)) {}

absl::Status Channels::CheckSize(const PointCloud& cloud) const {
  const int64_t bytes = static_cast<int64_t>(cloud.data().size());
  if (bytes <= options_.max_message_bytes - kEnvelopeBytes) return absl::OkStatus();
  return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                        "the cloud has ", bytes, " bytes, more than a message of ", options_.max_message_bytes,
                        " holds; raise max_message_bytes here and --max_message_bytes of the server, or send fewer "
                        "fields")),
                    kMessageTooLarge);
}

absl::Status Channels::Explain(const grpc::Status& grpc_status, grpc::Channel& channel, absl::Duration timeout) const {
  absl::Status status = FromGrpcStatus(grpc_status);
  if (!ErrorReason(status).empty()) return status;
  const absl::string_view message = status.message();
  const std::string address = &channel == admin_.get() ? options_.AdminAddress() : options_.address;
  const bool connected = channel.GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
  if (absl::IsUnavailable(status)) {
    if (IsTlsRefusal(message)) {
      return WithReason(absl::UnavailableError(absl::StrCat("no TLS connection to ", address,
                                                            WrongPortHint(message, true), " (", message, ")")),
                        kTlsFailed);
    }
    if (absl::StrContains(message, "failed to connect") || absl::StrContains(message, "andshake") ||
        absl::StrContains(message, "DNS resolution") || absl::StrContains(message, "onnection refused")) {
      const std::string hint = WrongPortHint(message, !options_.tls_ca.empty());
      return WithReason(absl::UnavailableError(absl::StrCat(hint.empty() ? "no server at " : "no gRPC connection to ",
                                                            address, hint, " (", Cause(message), ")")),
                        kNoServer);
    }
    return WithReason(absl::UnavailableError(absl::StrCat("lost the connection to ", address, " (", message, ")")),
                      kConnectionLost);
  }
  if (absl::IsDeadlineExceeded(status)) {
    return WithReason(absl::DeadlineExceededError(absl::StrCat(connected ? "no answer from " : "no connection to ",
                                                               address, " within ", absl::FormatDuration(timeout))),
                      kClientTimeout);
  }
  if (absl::IsResourceExhausted(status) && absl::StrContains(message, "larger than max")) {
    return WithReason(
        absl::ResourceExhaustedError(absl::StrCat(message, "; raise max_message_bytes of client and server")),
        kMessageTooLarge);
  }
  if (absl::IsResourceExhausted(status) && message == "Buffers full") {  // see AnswerMemory
    return WithReason(absl::ResourceExhaustedError(
                          absl::StrCat("the answer of ", address, " is larger than max_message_bytes (",
                                       options_.max_message_bytes, "), and was given up; raise max_message_bytes")),
                      kMessageTooLarge);
  }
  if (absl::IsUnimplemented(status) && absl::StartsWith(message, "No message returned")) {
    return Malformed(absl::StrCat("bytes that are no message of voxserve, from ", address));
  }
  if (absl::IsUnimplemented(status)) {
    return absl::UnimplementedError(
        absl::StrCat("the server at ", address, " is not a voxserve server of this version (", message, ")"));
  }
  return status;
}

}  // namespace voxserve::client
