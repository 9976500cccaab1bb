#include "engine/serving/admission/turn_order.h"

#include <algorithm>

namespace voxserve {

bool TurnOrder::DueEarlier::operator()(const Turn* a, const Turn* b) const {
  return a->due != b->due ? a->due < b->due : MoreUrgentHead()(a, b);
}

bool TurnOrder::OverdueEarlier::operator()(const Turn* a, const Turn* b) const {
  return a->overdue() != b->overdue() ? a->overdue() < b->overdue() : MoreUrgentHead()(a, b);
}

bool TurnOrder::HasCome(double time) const { return time <= now_ + kRounding; }

void TurnOrder::Put(Turn* turn) { pending_.insert(turn); }

void TurnOrder::TakeOut(Turn* turn) {
  if (pending_.erase(turn) > 0) return;
  ready_.erase(turn);
  ready_by_overdue_.erase(turn);
}

TurnOrder::Turn* TurnOrder::First() const {
  if (ready_.empty()) return nullptr;
  Turn* const longest = *ready_by_overdue_.begin();
  return HasCome(longest->overdue()) ? longest : *ready_.begin();
}

void TurnOrder::MoveTo(double time) { now_ = std::max(now_, time); }

void TurnOrder::Settle() {
  if (ready_.empty() && !pending_.empty()) MoveTo((*pending_.begin())->due);
  while (!pending_.empty() && HasCome((*pending_.begin())->due)) {
    Turn* const turn = *pending_.begin();
    pending_.erase(pending_.begin());
    ready_.insert(turn);
    ready_by_overdue_.insert(turn);
  }
}

}  // namespace voxserve
