#pragma once

// RunAtLowPriority runs work that is in no hurry and takes a core for seconds, such as reading a model's files. Beside
// threads that answer requests it gets a tenth of a core (its nice value is 10 higher). The work gets a thread of its
// own, since only a privileged process may raise a thread's priority again.
//
// Nobody who answers requests may wait for the work, for example by a lock that the work holds.

#include <functional>

namespace voxserve {

// Returns when the work is done. An exception of the work is thrown here. If the system gives no thread, the work runs
// on the caller's.
void RunAtLowPriority(const std::function<void()>& work);

}  // namespace voxserve
