#pragma once

// TurnOrder tells whose turn it is, among clients with equal shares of the device.
//
// - Virtual time is the device time that a client has had who always had its share.
// - Ready: a client whose turn is due. The most urgent of them comes first.
// - Overdue: a client that has been ready for so long that its request would have run by now, had it run at the
//   client's share of the device alone. Overdue clients come before all others, the longest overdue first: so whatever
//   urgency others claim, and however many others come, nobody waits for ever.
// - No device is left idle: where no client is ready, virtual time moves on to the first that will be.
// - Cost: logarithmic in the number of clients.
// - Threads: not thread-safe.

#include <set>

#include "engine/serving/admission/waiting_task.h"

namespace voxserve {

class TurnOrder {
 public:
  // One client's place. Whoever puts it here owns it, and changes it only while it is not here.
  struct Turn {
    double start = 0;             // virtual time at which its share of what it has had ends
    double due = 0;               // virtual time from which on it is ready
    WaitingTask* head = nullptr;  // its most urgent task

    // The virtual time from which on it is overdue.
    double overdue() const { return start + head->cost; }
  };

  // now: virtual time, seconds.
  explicit TurnOrder(double now = 0) : now_(now) {}
  TurnOrder(const TurnOrder&) = delete;
  TurnOrder& operator=(const TurnOrder&) = delete;

  // Settle follows before First is called.
  void Put(Turn* turn);
  void TakeOut(Turn* turn);
  // Returns nullptr where there is none.
  Turn* First() const;

  double now() const { return now_; }
  bool HasCome(double time) const;
  // Moves virtual time, never back.
  void MoveTo(double time);
  // Makes ready whoever is due, and at least one.
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
  std::set<Turn*, DueEarlier> pending_;  // those that are not ready
};

}  // namespace voxserve
