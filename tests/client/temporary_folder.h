#pragma once

// TemporaryFolder makes a folder for one test. The destructor deletes the folder with its files. The header also has
// functions that turn numbers into bytes, for tests that write binary files.

#include <string>

namespace voxserve::client {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

  // Writes a file and returns its path.
  std::string Write(const std::string& name, const std::string& contents) const;
  std::string Read(const std::string& name) const;

 private:
  std::string path_;
};

// Returns the bytes of a number in this machine's order (little endian).
template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

// Returns the bytes of a number with the most significant byte first.
template <typename T>
std::string BigEndianBytes(T value) {
  const std::string bytes = Bytes(value);
  return {bytes.rbegin(), bytes.rend()};
}

// Returns the bytes of the numbers, one number after the other, each in this machine's order.
template <typename T>
std::string BytesOf(std::initializer_list<T> values) {
  std::string bytes;
  for (const T value : values) bytes += Bytes(value);
  return bytes;
}

}  // namespace voxserve::client
