#include "tests/faults/fault.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "tests/faults/fault_rules.h"

namespace voxserve {
namespace {

constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 10'000'000};
constexpr int kExitUsage = 2;

struct SiteState {
  std::atomic<bool> has_rule{false};
  std::atomic<int64_t> after{0};
  std::atomic<int64_t> every{1};
  std::atomic<int64_t> left{0};  // faults that FaultRule::times still allows
  std::atomic<int64_t> amount{0};
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> faults{0};
};

// The array is constant-initialized, because allocations call HeapFaultAt before any constructor has run.
constinit std::array<SiteState, kFaultSiteNames.size()> sites;

SiteState& StateOf(FaultSite site) { return sites[static_cast<size_t>(site)]; }

// Replaces all rules. Returns one line for each site that had a rule until now: the site's name, how often it was
// called, and how often the call had a fault.
std::string Apply(const std::vector<FaultRule>& rules) {
  std::string counts;
  for (size_t i = 0; i < sites.size(); ++i) {
    if (!sites[i].has_rule.exchange(false)) continue;
    counts += std::string(kFaultSiteNames[i]) + " " + std::to_string(sites[i].calls) + " " +
              std::to_string(sites[i].faults) + "\n";
  }
  for (const FaultRule& rule : rules) {
    SiteState& state = StateOf(rule.site);
    state.after = rule.after;
    state.every = rule.every;
    state.left = rule.times;
    state.amount = rule.amount;
    state.calls = state.faults = 0;
    state.has_rule = true;
  }
  return counts;
}

std::string ContentOf(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

std::vector<FaultRule> RulesOrExit(const std::string& text) {
  absl::StatusOr<std::vector<FaultRule>> rules = ParseFaultRules(text);
  if (rules.ok()) return *std::move(rules);
  std::fprintf(stderr, "VOXSERVE_FAULTS: %s\n", std::string(rules.status().message()).c_str());
  _exit(kExitUsage);
}

[[noreturn]] void Follow(const std::string& path) {
  for (std::string current = ContentOf(path);; nanosleep(&kPause, nullptr)) {
    std::string text = ContentOf(path);
    if (text == current) continue;
    const std::string counts = Apply(RulesOrExit(text));
    current = std::move(text);
    std::ofstream(path + ".applied.new") << counts;
    std::rename((path + ".applied.new").c_str(), (path + ".applied").c_str());
  }
}

// Reads the rules before main runs, so that the program with faults shares main.cc with the ordinary program.
[[maybe_unused]] const bool is_read = [] {
  const char* const given = std::getenv("VOXSERVE_FAULTS");
  if (given == nullptr) return false;
  const std::string text = given;
  if (text.empty() || text.front() != '@') {
    Apply(RulesOrExit(text));
    return true;
  }
  const std::string path = text.substr(1);
  Apply(RulesOrExit(ContentOf(path)));
  // The thread blocks all signals. main blocks the signals that it waits for, but only later, so without this the
  // thread could receive one.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([path] { Follow(path); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}();

}  // namespace

bool FaultAt(FaultSite site) {
  SiteState& state = StateOf(site);
  if (!state.has_rule) return false;
  const int64_t call = ++state.calls - state.after;
  if (call <= 0 || call % state.every != 0) return false;
  for (int64_t left = state.left; left > 0;) {
    if (!state.left.compare_exchange_weak(left, left - 1)) continue;
    ++state.faults;
    return true;
  }
  return false;
}

void DelayAt(FaultSite site) {
  if (!FaultAt(site)) return;
  const int64_t ms = StateOf(site).amount;
  const timespec delay = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  nanosleep(&delay, nullptr);
}

bool HeapFaultAt(size_t bytes) {
  return static_cast<int64_t>(bytes) >= StateOf(FaultSite::kHeap).amount && FaultAt(FaultSite::kHeap);
}

int64_t ClockJumpSeconds() {
  const SiteState& state = StateOf(FaultSite::kClock);
  return state.has_rule ? state.amount.load() : 0;
}

}  // namespace voxserve
