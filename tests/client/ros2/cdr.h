#pragma once

// Reads and writes messages as ROS 2 sends them: CDR, little endian, version 1. For the stand-ins of ROS' types, whose
// ForEach lists their members. Every value lies at a multiple of its size, counted from the end of the 4-byte header.

#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace voxserve_ros::cdr {

inline constexpr size_t kHeaderBytes = 4;

class Reader {
 public:
  // Throws std::runtime_error if the bytes are no little-endian CDR.
  explicit Reader(std::vector<uint8_t> bytes) : bytes_(std::move(bytes)) {
    if (bytes_.size() < kHeaderBytes || bytes_[0] != 0 || bytes_[1] != 1) {
      throw std::runtime_error("no little-endian CDR");
    }
  }

  // Throws std::runtime_error if the message is shorter or longer than a T.
  template <typename T>
  T Read() {
    T message;
    Value(message);
    if (at_ != bytes_.size()) throw std::runtime_error("bytes are left over");
    return message;
  }

 private:
  template <typename T>
  void Value(T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      const size_t at = at_ - kHeaderBytes;
      at_ = kHeaderBytes + (at + sizeof(T) - 1) / sizeof(T) * sizeof(T);
      std::memcpy(&value, Take(sizeof(T)), sizeof(T));
    } else {
      value.ForEach([this](auto& member) { Value(member); });
    }
  }
  void Value(std::string& text) {
    const uint32_t size = Size();
    if (size == 0) throw std::runtime_error("a string has no end");
    text.assign(reinterpret_cast<const char*>(Take(size)), size - 1);
  }
  template <typename T>
  void Value(std::vector<T>& values) {
    values.resize(Size());
    for (T& value : values) Value(value);
  }
  template <typename T, size_t N>
  void Value(std::array<T, N>& values) {
    for (T& value : values) Value(value);
  }

  // Returns the size of a string or sequence, whose elements have a byte at least.
  uint32_t Size() {
    uint32_t size = 0;
    Value(size);
    if (size > bytes_.size() - at_) throw std::runtime_error("the message is too short");
    return size;
  }
  const uint8_t* Take(size_t size) {
    if (at_ > bytes_.size() || size > bytes_.size() - at_) throw std::runtime_error("the message is too short");
    at_ += size;
    return bytes_.data() + at_ - size;
  }

  const std::vector<uint8_t> bytes_;
  size_t at_ = kHeaderBytes;
};

class Writer {
 public:
  template <typename T>
  std::vector<uint8_t> Write(T message) {
    Value(message);
    return std::move(bytes_);
  }

 private:
  template <typename T>
  void Value(T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      while ((bytes_.size() - kHeaderBytes) % sizeof(T) != 0) bytes_.push_back(0);
      Append(&value, sizeof(T));
    } else {
      value.ForEach([this](auto& member) { Value(member); });
    }
  }
  void Value(std::string& text) {
    Size(text.size() + 1);
    Append(text.c_str(), text.size() + 1);
  }
  template <typename T>
  void Value(std::vector<T>& values) {
    Size(values.size());
    for (T& value : values) Value(value);
  }
  template <typename T, size_t N>
  void Value(std::array<T, N>& values) {
    for (T& value : values) Value(value);
  }

  void Size(size_t size) {
    auto narrow = static_cast<uint32_t>(size);
    Value(narrow);
  }
  void Append(const void* data, size_t size) {
    const auto* begin = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }

  std::vector<uint8_t> bytes_ = {0, 1, 0, 0};
};

}  // namespace voxserve_ros::cdr
