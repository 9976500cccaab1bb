#pragma once

// ModelTurns holds the tasks of one level and lets their models take turns by the device time that they use, so that a
// flood of one model's requests does not delay another model's few.
//
// - Rule: start-time fair queueing (Goyal, Vin and Cheng 1996). Each model has a start, which moves by the device time
//   of what it runs over its weight. The model with the earliest start is next; of equal ones, the most urgent.
// - Virtual time is the earliest start of the models that waited when a task ran last. A model that comes begins there,
//   or at its own start where that is later: it has saved nothing up while it was away, and it still owes what it used
//   beyond its share.
// - Device time is predicted when a task runs, and corrected when its batch has ended.
// - Within a model, clients take turns (ClientTurns).
// - Versions of one model share its turns; the weight is that of the task which came last.
// - Cost: that of ClientTurns, and linear in the number of models that wait or are remembered.
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
  // The task leaves without having run.
  void Remove(WaitingTask* task);
  // The task leaves to run, and is predicted to take so many seconds of the device.
  void Run(WaitingTask* task, double seconds);
  // What the model ran took so many seconds more than Run was told, or less. A model that is not known is passed over.
  void Correct(const std::string& model, double seconds);

  bool empty() const { return num_tasks_ == 0; }
  // Returns the task whose turn it is; nullptr: none waits.
  WaitingTask* First() const;
  // Returns the turns of the clients of a model that has tasks.
  const ClientTurns& ClientsOf(const std::string& model) const { return models_.at(model).clients; }

  // Returns ClientTurns::AheadBeyondWaiting among the model's own tasks.
  absl::flat_hash_map<const ServedModel*, Load> AheadBeyondWaiting(const std::string& model,
                                                                   const std::string& client) const;
  // Returns the work of the other models, by version, that waits at the level and was not promoted to it, as far as a
  // task of this model that comes now knows of their turns.
  std::vector<WaitingWork> WorkOfOthers(const ServedModel& model) const;

 private:
  struct Model {
    bool waits() const { return !clients.empty(); }

    ClientTurns clients;
    double start = 0;  // virtual time
    double weight = 1;
    std::map<const ServedModel*, Load> not_promoted;  // by version, with tasks
  };

  void Erase(const WaitingTask& task, Model& model);
  // Forgets the models that neither wait nor owe anything.
  void ForgetSettled();

  std::map<std::string, Model> models_;  // by name: those that wait, and those that owe
  double now_ = 0;                       // virtual time, seconds
  int64_t num_tasks_ = 0;
};

}  // namespace voxserve
