#pragma once

// Makes socket addresses in the form in which accept(2) returns them.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>

namespace voxserve {

inline sockaddr_storage Ipv4(const char* address, uint16_t port) {
  sockaddr_storage storage = {};
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(storage);
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET, address, &ipv4.sin_addr), 1);
  return storage;
}

inline sockaddr_storage Ipv6(const char* address, uint16_t port, uint32_t zone = 0) {
  sockaddr_storage storage = {};
  auto& ipv6 = reinterpret_cast<sockaddr_in6&>(storage);
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(port);
  ipv6.sin6_scope_id = zone;
  EXPECT_EQ(inet_pton(AF_INET6, address, &ipv6.sin6_addr), 1);
  return storage;
}

}  // namespace voxserve
