#include "engine/model/digest.h"

#include <openssl/evp.h>

#include <cstdint>
#include <memory>

#include "absl/strings/escaping.h"

namespace voxserve {

std::string Sha256OfParts(std::initializer_list<std::string_view> parts, const std::stop_token& stop) {
  constexpr size_t kBytesBetweenStops = size_t{64} << 20;  // some 50 ms
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  for (const std::string_view part : parts) {
    unsigned char size[8];
    for (int i = 0; i < 8; ++i) size[i] = static_cast<unsigned char>(uint64_t{part.size()} >> (8 * i));
    EVP_DigestUpdate(context.get(), size, sizeof(size));
    for (size_t begin = 0; begin < part.size() && !stop.stop_requested(); begin += kBytesBetweenStops) {
      const std::string_view piece = part.substr(begin, kBytesBetweenStops);
      EVP_DigestUpdate(context.get(), piece.data(), piece.size());
    }
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int digest_bytes = 0;
  EVP_DigestFinal_ex(context.get(), digest, &digest_bytes);
  return absl::BytesToHexString(std::string(reinterpret_cast<const char*>(digest), digest_bytes));
}

}  // namespace voxserve
