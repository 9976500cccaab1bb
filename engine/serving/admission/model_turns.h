#pragma once

// ModelTurns holds the tasks of one level and lets their models take turns by the device time that they use, so that
// many requests of one model do not delay the few of another.
//
// - Rule: start-time fair queueing (Goyal, Vin and Cheng 1996). Each model has a start, which moves by the device time
//   of its tasks divided by its weight. The model with the earliest start is next; of equal ones, the one with the most
//   urgent task.
// - Virtual time is the earliest start of the models that waited when a task ran last. A model that comes starts there,
//   or at its own start if that is later: it gets no credit for its absence, and still owes what it used beyond its
//   share.
// - Device time is predicted when a task runs, and corrected when its batch ends.
// - Within a model, clients take turns (ClientTurns).
// - Versions of one model share its turns. The weight is that of the task that came last.
// - Cost: that of ClientTurns, and linear in the number of models that wait or owe.
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
  // Adds the difference between the actual and the predicted seconds of a model's batch. Ignores an unknown model.
  void Correct(const std::string& model, double seconds);

  bool empty() const { return num_tasks_ == 0; }
  // Returns the task whose turn it is; nullptr: none waits.
  WaitingTask* First() const;
  // Returns the turns of the clients of a model that has tasks.
  const ClientTurns& ClientsOf(const std::string& model) const { return models_.at(model).clients; }

  // Returns ClientTurns::AheadBeyondWaiting among the model's own tasks.
  absl::flat_hash_map<const ServedModel*, Load> AheadBeyondWaiting(const std::string& model,
                                                                   const std::string& client) const;
  // Returns the work of the other models, by version, that waits at the level and was not promoted to it, with its
  // turns relative to a task of this model that comes now.
  std::vector<WaitingWork> WorkOfOthers(const ServedModel& model) const;

 private:
  struct Model {
    bool waits() const { return !clients.empty(); }

    ClientTurns clients;
    double start = 0;  // virtual time
    double weight = 1;
    std::map<const ServedModel*, Load> not_promoted;  // by version; only versions with such tasks
  };

  void Erase(const WaitingTask& task, Model& model);
  // Forgets the models that neither wait nor owe anything.
  void ForgetSettled();

  std::map<std::string, Model> models_;  // by name; those that wait or owe device time
  double now_ = 0;                       // virtual time, seconds
  int64_t num_tasks_ = 0;
};

}  // namespace voxserve
