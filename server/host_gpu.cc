#include "server/host_gpu.h"

#include <system_error>

namespace voxserve {

std::string FindNvidiaGpu(const std::filesystem::path& root) {
  std::error_code ignored;
  const std::filesystem::path device = root / "dev/nvidia0";
  if (std::filesystem::exists(device, ignored)) return device.string();
  const std::filesystem::path gpus = root / "proc/driver/nvidia/gpus";
  const std::filesystem::directory_iterator first(gpus, ignored);
  if (!ignored && first != std::filesystem::directory_iterator()) return first->path().string();
  return "";
}

}  // namespace voxserve
