#include "tests/integration/server_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "tests/support/paths.h"

extern char** environ;

namespace voxserve {

ServerProcess::ServerProcess(const std::vector<std::string>& args) {
  std::vector<std::string> words = {support::BinaryDir() + "/server/voxserve"};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  int out[2];
  int err[2];
  if (pipe(out) != 0 || pipe(err) != 0) std::abort();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  for (const int descriptor : {out[0], out[1], err[0], err[1]}) {
    posix_spawn_file_actions_addclose(&actions, descriptor);
  }
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::abort();
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  stdout_reader_ = std::thread([this, descriptor = out[0]] { ReadStdout(descriptor); });
  stderr_reader_ = std::thread([this, descriptor = err[0]] { ReadStderr(descriptor); });
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  ReadStderrAgain();
  if (stdout_reader_.joinable()) stdout_reader_.join();
  if (stderr_reader_.joinable()) stderr_reader_.join();
}

void ServerProcess::ReadStdout(int descriptor) {
  char buffer[4096];
  for (ssize_t size; (size = read(descriptor, buffer, sizeof(buffer))) > 0;) {
    absl::MutexLock lock(&mutex_);
    stdout_.append(buffer, size);
  }
  close(descriptor);
}

void ServerProcess::ReadStderr(int descriptor) {
  char buffer[4096];
  for (ssize_t size; (size = read(descriptor, buffer, sizeof(buffer))) > 0;) {
    absl::MutexLock lock(&mutex_);
    stderr_.append(buffer, size);
    mutex_.Await(absl::Condition(&reads_stderr_));
  }
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  close(descriptor);
}

std::string ServerProcess::AwaitLine(const std::string& text) {
  absl::MutexLock lock(&mutex_);
  std::string found;
  const auto is_there = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const absl::string_view line : absl::StrSplit(stderr_, '\n')) {
      if (line.find(text) == absl::string_view::npos) continue;
      found = std::string(line);
      return true;
    }
    return closed_;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&is_there), absl::Minutes(1));
  return found;
}

int ServerProcess::PortOf(const std::string& key) {
  for (const absl::string_view word : absl::StrSplit(AwaitLine(" INFO serving "), ' ')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(word, absl::MaxSplits('=', 1));
    int port = -1;
    if (pair.first == key && absl::SimpleAtoi(pair.second, &port)) return port;
  }
  return -1;
}

void ServerProcess::StopReadingStderr() {
  absl::MutexLock lock(&mutex_);
  reads_stderr_ = false;
}

void ServerProcess::ReadStderrAgain() {
  absl::MutexLock lock(&mutex_);
  reads_stderr_ = true;
}

void ServerProcess::Signal(int signal) { kill(pid_, signal); }

int ServerProcess::Wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  ReadStderrAgain();
  stdout_reader_.join();
  stderr_reader_.join();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string ServerProcess::stdout_text() {
  absl::MutexLock lock(&mutex_);
  return stdout_;
}

std::string ServerProcess::stderr_text() {
  absl::MutexLock lock(&mutex_);
  return stderr_;
}

}  // namespace voxserve
