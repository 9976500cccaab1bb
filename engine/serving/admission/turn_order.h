#pragma once

// TurnOrder decides whose turn it is, among clients with equal shares of the device.
//
// - Virtual time is the device time that a client has had if it had its share all the time.
// - Ready: a client whose turn is due. The most urgent of them comes first.
// - Overdue: a client that has been ready for as long as its request would have run on the client's share of the device
//   alone. Overdue clients come before all others, the longest overdue first. So no client waits for ever, whatever
//   urgency others claim and however many others come.
// - No idle device: if no client is ready, virtual time moves on to the first client that will be.
// - Cost: logarithmic in the number of clients.
// - Threads: not thread-safe.

#include <set>

#include "engine/serving/admission/waiting_task.h"

namespace voxserve {

class TurnOrder {
 public:
  // One client's place in the order. Its owner changes it only while it is not in the order.
  struct Turn {
    double start = 0;             // the virtual time when the device time that it had equals its share
    double due = 0;               // the virtual time from which it is ready
    WaitingTask* head = nullptr;  // its most urgent task

    // Returns the virtual time from which the client is overdue.
    double overdue() const { return start + head->cost; }
  };

  // now: virtual time, seconds.
  explicit TurnOrder(double now = 0) : now_(now) {}
  TurnOrder(const TurnOrder&) = delete;
  TurnOrder& operator=(const TurnOrder&) = delete;

  // Adds a turn. Settle must be called before First.
  void Put(Turn* turn);
  void TakeOut(Turn* turn);
  // Returns the client whose turn it is; nullptr where there is none.
  Turn* First() const;

  double now() const { return now_; }
  bool HasCome(double time) const;
  // Moves virtual time forward; ignores an earlier time.
  void MoveTo(double time);
  // Makes the clients ready whose turn is due, and at least one.
  void Settle();

 private:
  struct MoreUrgentHead {
    bool operator()(const Turn* a, const Turn* b) const { return MoreUrgent()(a->head, b->head); }
  };
  struct DueEarlier {
    bool operator()(const Turn* a, const Turn* b) const;
  };
  struct OverdueEarlier {
    bool operator()(const Turn* a, const Turn* b) const;
  };

  double now_;
  std::set<Turn*, MoreUrgentHead> ready_;
  std::set<Turn*, OverdueEarlier> ready_by_overdue_;
  std::set<Turn*, DueEarlier> pending_;  // turns that are not ready
};

}  // namespace voxserve
