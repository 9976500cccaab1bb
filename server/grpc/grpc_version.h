#pragma once

// Everything in which the server's code depends on the version of gRPC is in this folder. The server is made for 1.51
// (Debian 12's). It also builds and runs with 1.83 (VOXSERVE_GRPC_ROOT, client/cpp/README.md). No version between them
// was tried. server/THREATS.md says how they differ at run time.

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/version_info.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>

#define VOXSERVE_GRPC_UP_TO_1_51 (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR <= 51)

namespace voxserve {

// Credentials of a server's port, made of those of gRPC's C interface, which it owns. The base class of 1.51 leaves
// that to those who derive from it; later ones do it themselves.
class OwnedServerCredentials : public grpc::ServerCredentials {
 protected:
#if VOXSERVE_GRPC_UP_TO_1_51
  explicit OwnedServerCredentials(grpc_server_credentials* credentials) : credentials_(credentials) {}
  ~OwnedServerCredentials() override { grpc_server_credentials_release(credentials_); }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
#else
  using grpc::ServerCredentials::ServerCredentials;

 private:
#endif
  // Never called: RpcRouter checks the tokens, since it knows which method a call asks for.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>& /*processor*/) override {
    std::abort();
  }
};

// Returns the names of the threads with which gRPC reads connections, as Linux has them (up to 15 characters).
inline std::set<std::string> NamesOfReadingThreads() {
#if VOXSERVE_GRPC_UP_TO_1_51
  return {"nexting_thread", "default-executo"};
#else
  return {"event_engine"};
#endif
}

// The names that channelz gives the fields of an address in its JSON: 1.51 writes those of the .proto file.
#if VOXSERVE_GRPC_UP_TO_1_51
inline constexpr char kChannelzTcpAddress[] = "tcpip_address";
inline constexpr char kChannelzIpAddress[] = "ip_address";
#else
inline constexpr char kChannelzTcpAddress[] = "tcpipAddress";
inline constexpr char kChannelzIpAddress[] = "ipAddress";
#endif

}  // namespace voxserve
