#pragma once

// ModelTurns holds the waiting tasks of one level (batcher.h) and lets their models take turns by the device time that
// they use, so that many requests of one model do not delay the few requests of another.
//
// - Rule: start-time fair queueing (Goyal, Vin and Cheng 1996). Each model has a start, in virtual time. When a task
//   runs, the start of its model moves by the task's device time divided by the model's weight (device_weight in its
//   config). The model with the earliest start is next; if several have it, the model with the most urgent task is.
// - Virtual time is the earliest start of the models that had tasks when a task ran last. A model that comes starts at
//   the virtual time, or at its own start if that is later: it gets no credit for its absence, and still owes the
//   device time that it used beyond its share.
// - Device time is predicted when a task runs, and corrected when its batch ends (Correct).
// - Within a model, clients take turns (ClientTurns).
// - The versions of a model share its turns. The weight is that of the version of the newest task.
// - Run time: that of ClientTurns, plus a part linear in the number of models that wait or owe device time.
// - Threads: not thread-safe. TaskQueue owns it.

#include <map>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/serving/admission/client_turns.h"
#include "engine/serving/admission/latency_model.h"
#include "engine/serving/admission/waiting_task.h"

namespace voxserve {

class ModelTurns {
 public:
  void Add(WaitingTask* task);
  // Removes a task that does not run.
  void Remove(WaitingTask* task);
  // Removes a task that runs, and charges its model the predicted seconds of the device.
  void Run(WaitingTask* task, double seconds);
  // Charges the model the difference between the actual and the predicted seconds of its batch, which may be negative.
  // Ignores an unknown model.
  void Correct(const std::string& model, double seconds);

  bool empty() const { return num_tasks_ == 0; }
  // Returns the task whose turn it is; nullptr if no task waits.
  WaitingTask* First() const;
  // Returns the turns of the clients of a model that has tasks.
  const ClientTurns& ClientsOf(const std::string& model) const { return models_.at(model).clients; }

  // Returns the result of ClientTurns::ExpectedExtraLoad for the model's clients; empty for an unknown model.
  absl::flat_hash_map<const ServedModel*, WorkSize> ExpectedExtraLoad(const std::string& model,
                                                                      const std::string& client) const;
  // Returns, by version, the work of the other models that waits at the level and was not promoted to it. Its Turn is
  // relative to a task of this model that comes now.
  std::vector<WaitingWork> WorkOfOthers(const ServedModel& model) const;

 private:
  struct Model {
    bool waits() const { return !clients.empty(); }

    ClientTurns clients;
    double start = 0;  // virtual time
    double weight = 1;
    std::map<const ServedModel*, WorkSize> not_promoted;  // by version; only versions with such tasks
  };

  void Erase(const WaitingTask& task, Model& model);
  // Forgets the models that neither wait nor owe anything.
  void ForgetSettled();

  std::map<std::string, Model> models_;  // by name; those that wait or owe device time
  double now_ = 0;                       // virtual time, seconds
  int64_t num_tasks_ = 0;
};

}  // namespace voxserve
