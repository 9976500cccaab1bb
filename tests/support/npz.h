#pragma once

// Reads NumPy's .npy arrays and .npz archives (numpy.lib.format, versions 1 to 3), which hold the golden inputs and
// outputs of tests. Arrays must have a fixed-size scalar dtype, little-endian, in C order. Other arrays (Fortran
// order of more than one dimension, structured and object dtypes) are UNIMPLEMENTED, with the property that is not
// read. Errors for damaged files name the file and the array.
//
//   ASSERT_OK_AND_ASSIGN(auto golden, ReadNpz(path));
//   const float* logits = golden.at("logits").data<float>();  // [M, 12]

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace voxserve::support {

// Returns NumPy's name of a C++ type: "<f4" for float, "|u1" for uint8_t, "|b1" for bool.
template <typename T>
std::string NpyDtype() {
  static_assert(std::is_arithmetic_v<T>);
  const char* kind = std::is_same_v<T, bool>       ? "b"
                     : std::is_floating_point_v<T> ? "f"
                     : std::is_signed_v<T>         ? "i"
                                                   : "u";
  return absl::StrCat(sizeof(T) == 1 ? "|" : "<", kind, sizeof(T));
}

// Owns its values, which are in C order.
struct NpyArray {
  std::string dtype;           // "<f4", "<f2", "<i4", "<i8", "|u1", "|b1", ...
  std::vector<int64_t> shape;  // empty for a scalar
  std::string bytes;

  int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    return count;
  }

  // Returns num_elements() values. If T is not the array's dtype, the test has a bug: the call prints both and aborts.
  template <typename T>
  const T* data() const {
    if (dtype != NpyDtype<T>()) {
      std::cerr << "NpyArray::data: the array is " << dtype << ", not " << NpyDtype<T>() << std::endl;
      std::abort();
    }
    return reinterpret_cast<const T*>(bytes.data());
  }

  // Returns a copy of the values.
  template <typename T>
  std::vector<T> values() const {
    return std::vector<T>(data<T>(), data<T>() + num_elements());
  }
};

// Parses the bytes of one .npy file.
absl::StatusOr<NpyArray> ParseNpy(absl::string_view file);
absl::StatusOr<NpyArray> ReadNpy(const std::string& path);

// Returns the arrays by name, without ".npy".
absl::StatusOr<std::map<std::string, NpyArray>> ReadNpz(const std::string& path);

}  // namespace voxserve::support
