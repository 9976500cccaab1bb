#pragma once

// Model describes one version of a model that the server has, in service or not. Immutable; copies share their data. A
// move is a copy.

#include <voxserve/export.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace voxserve::detail {
struct ModelData;
}

namespace voxserve {
inline namespace abi0 {

enum class ModelState : int { kUnspecified = 0, kLoading = 1, kReady = 2, kFailed = 3 };

class VOXSERVE_API Model {
 public:
  explicit Model(std::shared_ptr<const detail::ModelData> data) noexcept;  // private to the library
  Model(const Model&) noexcept = default;
  Model& operator=(const Model&) noexcept = default;

  std::string_view name() const noexcept;
  int64_t version() const noexcept;
  ModelState state() const noexcept;
  std::vector<std::string> problems() const;  // of a version that failed
  std::string_view description() const noexcept;
  std::string_view device() const noexcept;  // "cpu" or "cuda:N"
  uint64_t max_points() const noexcept;      // that a request may carry
  // The outputs; all false unless the state is kReady.
  bool has_labels() const noexcept;
  bool has_boxes() const noexcept;
  bool has_scores() const noexcept;
  bool has_velocities() const noexcept;
  uint32_t ignore_label() const noexcept;
  std::vector<uint32_t> class_ids() const;
  std::string_view class_name(uint32_t class_id) const noexcept;          // empty for an id that is not of the model
  std::optional<uint32_t> class_color(uint32_t class_id) const noexcept;  // 0xRRGGBB
  std::vector<std::string> features() const;      // the fields that the network reads of a point
  std::vector<std::string> tensor_names() const;  // that calls may ask for

 private:
  std::shared_ptr<const detail::ModelData> data_;
};

}  // namespace abi0
}  // namespace voxserve
