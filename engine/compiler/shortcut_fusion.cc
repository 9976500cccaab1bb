#include "engine/compiler/shortcut_fusion.h"

#include <variant>

#include "engine/compiler/row_products.h"

namespace voxserve {
namespace {

bool CanFuse(const Layers& layers, int conv, int shortcut) {
  const Layer& of_conv = layers.At(conv);
  const Layer& of_shortcut = layers.At(shortcut);
  if (!std::holds_alternative<SparseConvOp>(layers.FirstNode(of_conv).op) || IsRowProduct(layers, of_conv))
    return false;
  if (!IsRowProduct(layers, of_shortcut)) return false;
  if (of_conv.shortcut >= 0) return false;  // a kernel adds one shortcut
  const Layer& earlier = conv < shortcut ? of_conv : of_shortcut;
  const Layer& later = conv < shortcut ? of_shortcut : of_conv;
  // The later layer has taken the addition, and the earlier layer as its residual.
  const bool is_read_elsewhere = layers.ReadersOf(earlier).size() != 1 || layers.IsOutput(earlier.result_node) ||
                                 layers.DecidesSites(earlier.result_node);
  return !is_read_elsewhere && !earlier.activation && layers.InputsOf(of_shortcut).front() < conv &&
         !layers.StaysFloat32(later);
}

}  // namespace

void FuseShortcuts(const std::function<bool(int, int)>& may_share_sums, Layers& layers) {
  const auto can_fuse = [&](int conv, int shortcut) {
    return CanFuse(layers, conv, shortcut) && may_share_sums(conv, shortcut);
  };
  for (int later = 0; later < layers.size(); ++later) {
    const int earlier = layers.At(later).residual;
    if (earlier < 0) continue;
    if (can_fuse(earlier, later)) {
      layers.FuseShortcut(earlier, later);
    } else if (can_fuse(later, earlier)) {
      layers.FuseShortcut(later, earlier);
    }
  }
}

}  // namespace voxserve
