#pragma once

// TurnOrder decides which of several clients has the next turn. ClientTurns and its Cursor own one each; they move
// virtual time and the clients' starts, and take the clients' shares of the device into account there.
//
// - Virtual time, in seconds, is the device time that a client of share 1 has had if it had its share all the time.
// - Ready: a client is ready when virtual time has reached its `due`. Among the ready clients, the one with the most
//   urgent task comes first.
// - Overdue: a ready client is overdue when virtual time has passed its `start` by the cost of its most urgent task. By
//   then a client of share 1 would have run the task on its share of the device. Overdue clients come before all
//   others, the longest overdue first. So no client waits for ever, whatever urgency others claim and however many
//   others come.
// - No idle device: if no client is ready, virtual time moves on to the first `due`.
// - Run time: logarithmic in the number of clients.
// - Threads: not thread-safe.

#include <set>

#include "engine/serving/admission/waiting_task.h"

namespace voxserve {

class TurnOrder {
 public:
  // Virtual times that differ by less than this, in seconds, count as equal, since their sums are rounded.
  static constexpr double kRounding = 1e-9;

  // One client's place in the order. Its owner changes a Turn only while the Turn is not in the order.
  struct Turn {
    double start = 0;             // the virtual time at which the client has had exactly its share of the device
    double due = 0;               // the virtual time from which the client is ready
    WaitingTask* head = nullptr;  // the client's most urgent task

    // Returns the virtual time from which the client is overdue.
    double overdue() const { return start + head->cost; }
  };

  // now: virtual time, seconds.
  explicit TurnOrder(double now = 0) : now_(now) {}
  TurnOrder(const TurnOrder&) = delete;
  TurnOrder& operator=(const TurnOrder&) = delete;

  // Adds a turn. Call Settle between the last Put and First.
  void Put(Turn* turn);
  void TakeOut(Turn* turn);
  // Returns the client whose turn it is; nullptr if the order is empty.
  Turn* First() const;

  double now() const { return now_; }
  // Returns true if virtual time has reached `time`.
  bool HasCome(double time) const;
  // Moves virtual time forward; ignores an earlier time.
  void MoveTo(double time);
  // Makes every client ready whose turn is due, and at least one client if there are any.
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
