#include "engine/model/checks/checks.h"
#include "engine/model/graph.h"

namespace voxserve {

int ReadOutChannels(uint32_t out_channels, const ProblemsAt& at) {
  if (out_channels >= 1 && out_channels <= kMaxChannels) return static_cast<int>(out_channels);
  at.Add("out_channels is ", out_channels, "; it must be 1 to ", kMaxChannels);
  return 0;
}

int ReadGroups(uint32_t groups, int in_channels, int out_channels, const ProblemsAt& at) {
  if (groups <= 1) return 1;
  if (in_channels == 0 || out_channels == 0) return 0;
  if (in_channels % groups == 0 && out_channels % groups == 0) return static_cast<int>(groups);
  at.Add("groups is ", groups, "; it must divide its ", in_channels, " input and ", out_channels, " output channels");
  return 0;
}

}  // namespace voxserve
