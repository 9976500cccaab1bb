#include "engine/tuner/plan_search.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"
#include "engine/ops/conv/dataflow.h"
#include "engine/tuner/plan_candidates.h"
#include "engine/tuner/result_guard.h"
#include "engine/tuner/scan_buckets.h"

namespace voxserve {
namespace {

constexpr size_t kMaxScansOfBucket = 16;  // more scans are not measured
constexpr size_t kShortlist = 4;          // candidates of a convolution that are measured on all scans
constexpr int kCandidateRepeats = 3;      // most repeats of the first, coarse measurement
constexpr int kFinalRuns = 20;            // least number of runs in the last measurement
constexpr double kWorthwhile = 0.99;      // a better plan takes less than this part of the default's time

// The ends of the stages, as shares of the whole search and of a bucket.
constexpr double kSizesEnd = 0.1, kBucketsEnd = 0.95;
constexpr double kCandidatesEnd = 0.3, kNumbersEnd = 0.45, kShortlistEnd = 0.65, kDataflowsEnd = 0.8, kMapsEnd = 0.9;

// The results of one bucket's stages so far.
struct BucketState {
  NetworkPlan defaults;
  std::vector<const InferTask*> scans;  // the scans that are measured
  const SizedScan* middle = nullptr;
  InferResult expected;                            // the default plan's result on the scan `middle`
  std::vector<NetworkPlan> shortlist;              // by convolution
  std::vector<NetworkPlan> measured;               // by convolution: the default and the remaining shortlist
  std::vector<std::vector<absl::Duration>> times;  // times of `measured`, summed over the scans
};

class PlanSearch {
 public:
  PlanSearch(const Program& program, const RunScan& run, const SearchOptions& options)
      : program_(program),
        options_(options),
        timer_(program, run,
               {.time_limit = options.time_limit, .on_progress = options.on_progress, .now = options.now}) {}

  absl::StatusOr<SearchResult> Run(absl::Span<const InferTask> scans) {
    ASSIGN_OR_RETURN(std::vector<SizedScan> sized, MeasureSizes(scans));
    std::vector<ScanBucket> buckets = CutIntoBuckets(std::move(sized));
    for (size_t i = 0; i < buckets.size(); ++i) {
      bucket_name_ = buckets.size() == 1 ? "" : absl::StrCat("size ", i + 1, " of ", buckets.size(), ": ");
      bucket_share_ = (kBucketsEnd - kSizesEnd) / static_cast<double>(buckets.size());
      bucket_begin_ = kSizesEnd + bucket_share_ * static_cast<double>(i);
      RETURN_IF_ERROR(SearchBucket(buckets[i]));
    }
    if (buckets.size() > 1) RETURN_IF_ERROR(ConfirmTogether(buckets));
    result_.search_time = timer_.elapsed();
    result_.num_runs = timer_.num_runs();
    return std::move(result_);
  }

 private:
  void BeginStage(absl::string_view name, double end, size_t num_runs) {
    timer_.BeginStage(absl::StrCat(bucket_name_, name), bucket_begin_ + bucket_share_ * end,
                      static_cast<int64_t>(num_runs));
  }
  // Adds a note, but only once if it repeats.
  void Note(absl::string_view note) {
    std::string text = absl::StrCat(bucket_name_, note);
    if (result_.notes.empty() || result_.notes.back() != text) result_.notes.push_back(std::move(text));
  }
  size_t repeats() const { return static_cast<size_t>(std::max(options_.repeats, 1)); }
  // Returns the rulebook that the convolution reads, or that is reversed for it.
  size_t SearchedRulebook(size_t conv) const {
    const auto index = static_cast<size_t>(program_.convs[conv].rulebook);
    const int swap_of = program_.rulebooks[index].swap_of;
    return swap_of >= 0 ? static_cast<size_t>(swap_of) : index;
  }

  absl::StatusOr<std::vector<SizedScan>> MeasureSizes(absl::Span<const InferTask> scans);
  absl::Status SearchBucket(const ScanBucket& bucket);

  absl::Status MakeShortlist(BucketState& state);
  std::vector<ConvPlan> BestOf(const BucketState& state, size_t conv, const std::vector<NetworkPlan>& runs,
                               const std::vector<PlanTimes>& times) const;
  absl::Status DropDeviating(BucketState& state);
  absl::Status DropDeviating(BucketState& state, size_t rank, const std::vector<size_t>& convs,
                             std::set<std::pair<size_t, size_t>>& dropped);
  absl::StatusOr<std::string> WhyUnfit(const BucketState& state, const NetworkPlan& plan);
  absl::Status MeasureShortlist(BucketState& state);

  std::optional<size_t> Best(const BucketState& state, size_t conv, std::optional<Dataflow> dataflow) const;
  std::vector<NetworkPlan> MixesOf(const BucketState& state) const;
  absl::StatusOr<NetworkPlan> ChooseDataflows(const BucketState& state);
  absl::StatusOr<NetworkPlan> ChooseMapSearches(const BucketState& state, NetworkPlan plan);
  absl::Status Conclude(const ScanBucket& bucket, const BucketState& state, const std::vector<NetworkPlan>& found);
  absl::Status ConfirmTogether(const std::vector<ScanBucket>& buckets);
  const NetworkPlan& DefaultsOf(size_t bucket) const {
    return program_.default_plans.ForVoxels(result_.buckets[bucket].bucket.min_voxels);
  }
  // Replaces the bucket's result by the default.
  void KeepDefault(size_t bucket);

  const Program& program_;
  const SearchOptions& options_;
  PlanTimer timer_;
  SearchResult result_;
  std::string bucket_name_;
  double bucket_begin_ = 0, bucket_share_ = 1;
};

absl::StatusOr<std::vector<SizedScan>> PlanSearch::MeasureSizes(absl::Span<const InferTask> scans) {
  if (scans.empty()) return absl::InvalidArgumentError("there is no scan to search a plan with");
  timer_.BeginStage("sizes", kSizesEnd, static_cast<int64_t>(scans.size()));
  std::vector<SizedScan> sized;
  std::string refused;
  for (size_t i = 0; i < scans.size(); ++i) {
    if (timer_.is_out_of_time() && !sized.empty()) {
      result_.notes.push_back(absl::StrCat("there was no time for ", scans.size() - i, " of ", scans.size(), " scans"));
      break;
    }
    // On a GPU, map sizes are only known for rulebooks in pairs form, so this uses the dataflow that every convolution
    // supports and that reads pairs.
    const NetworkPlan plan = UniversalPlans(program_, program_.default_plans.ForVoxels(scans[i].num_points()));
    ASSIGN_OR_RETURN(BatchReport output, timer_.Run(timer_.TableOf(plan), scans[i], {.times_convs = true}));
    std::string why = WhyFailed(output);
    const int64_t num_voxels = why.empty() ? output.samples[0].counts.voxels : 0;
    if (why.empty() && num_voxels == 0) why = "it has no voxel";
    if (why.empty()) {
      sized.push_back({.input = &scans[i], .num_voxels = num_voxels, .sizes = std::move(output.rulebook_sizes)});
    } else {
      const std::string name = i < options_.scan_names.size() ? options_.scan_names[i] : absl::StrCat("scan ", i + 1);
      refused = absl::StrCat(name, " is left out: ", why);
      result_.notes.push_back(refused);
    }
  }
  if (!sized.empty()) return sized;
  return absl::InvalidArgumentError(absl::StrCat("none of the ", scans.size(), " scans can be run; ", refused));
}

absl::Status PlanSearch::SearchBucket(const ScanBucket& bucket) {
  BucketState state;
  state.middle = &bucket.scans[bucket.scans.size() / 2];
  state.defaults = program_.default_plans.ForVoxels(state.middle->num_voxels);
  const size_t num_scans = std::min(bucket.scans.size(), kMaxScansOfBucket);
  for (size_t i = 0; i < num_scans; ++i) {
    state.scans.push_back(bucket.scans[(2 * i + 1) * bucket.scans.size() / (2 * num_scans)].input);
  }
  RETURN_IF_ERROR(MakeShortlist(state));
  RETURN_IF_ERROR(DropDeviating(state));
  RETURN_IF_ERROR(MeasureShortlist(state));
  ASSIGN_OR_RETURN(const NetworkPlan chosen, ChooseDataflows(state));
  ASSIGN_OR_RETURN(const NetworkPlan searched, ChooseMapSearches(state, chosen));
  return Conclude(bucket, state, {chosen, searched});
}

absl::Status PlanSearch::MakeShortlist(BucketState& state) {
  const std::vector<NetworkPlan> runs = CandidateRuns(program_, state.defaults, state.middle->sizes);
  const int repeats = std::clamp(options_.repeats, 1, kCandidateRepeats);
  BeginStage("candidates", kCandidatesEnd, runs.size() * static_cast<size_t>(repeats));
  ASSIGN_OR_RETURN(const std::vector<PlanTimes> times,
                   timer_.Time(runs, {state.middle->input}, repeats, /*times_convs=*/true));
  const auto num_lost = std::count_if(times.begin(), times.end(), [](const PlanTimes& t) { return !t.is_whole; });
  if (num_lost > 0) {
    Note(absl::StrCat(num_lost, " of ", times.size(), " runs of candidates ",
                      timer_.is_out_of_time() ? "failed or had no time" : "failed"));
  }
  for (size_t c = 0; c < program_.convs.size(); ++c) state.shortlist.push_back(BestOf(state, c, runs, times));
  return absl::OkStatus();
}

// Returns a convolution's best candidates without the default. They include the best of each other dataflow, so that
// whole networks of one dataflow can be made.
std::vector<ConvPlan> PlanSearch::BestOf(const BucketState& state, size_t conv, const std::vector<NetworkPlan>& runs,
                                         const std::vector<PlanTimes>& times) const {
  std::vector<size_t> order;
  for (size_t r = 0; r < runs.size(); ++r) {
    if (!times[r].is_whole || conv >= times[r].convs.size() || runs[r][conv] == state.defaults[conv]) continue;
    if (times[r].convs[conv] > absl::ZeroDuration()) order.push_back(r);  // else it did not run: it keeps the default
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return times[a].convs[conv] < times[b].convs[conv]; });
  std::set<size_t> chosen;  // positions in `order`
  std::set<Dataflow> seen = {state.defaults[conv].dataflow};
  for (size_t i = 0; i < order.size(); ++i) {
    if (seen.insert(runs[order[i]][conv].dataflow).second) chosen.insert(i);
  }
  for (size_t i = 0; i < order.size() && chosen.size() < kShortlist; ++i) chosen.insert(i);
  std::vector<ConvPlan> best;
  for (const size_t i : chosen) best.push_back(runs[order[i]][conv]);
  return best;
}

// Returns why the plan's results cannot replace the default's; "" if they can.
absl::StatusOr<std::string> PlanSearch::WhyUnfit(const BucketState& state, const NetworkPlan& plan) {
  const PlanTable table = timer_.TableOf(plan);
  const ScanRunOptions options = {.return_scores = program_.has_scores};
  ASSIGN_OR_RETURN(const BatchReport first, timer_.Run(table, *state.middle->input, options));
  if (std::string why = WhyFailed(first); !why.empty()) return why;
  if (std::string why = WhyDeviates(program_, state.expected, first.samples[0]); !why.empty()) return why;
  if (options_.may_be_nondeterministic) return "";
  ASSIGN_OR_RETURN(const BatchReport second, timer_.Run(table, *state.middle->input, options));
  if (std::string why = WhyFailed(second); !why.empty()) return why;
  return HaveSameBytes(first.samples[0], second.samples[0]) ? "" : "its results differ from run to run";
}

absl::Status PlanSearch::DropDeviating(BucketState& state) {
  BeginStage("numbers", kNumbersEnd, 1 + 2 * kShortlist);
  ASSIGN_OR_RETURN(BatchReport output, timer_.Run(timer_.TableOf(state.defaults), *state.middle->input,
                                                  {.return_scores = program_.has_scores}));
  RETURN_IF_ERROR(output.status);
  if (std::string why = WhyFailed(output); !why.empty()) {
    return absl::InternalError(absl::StrCat("a scan that ran before fails by the default plan: ", why));
  }
  state.expected = std::move(output.samples[0]);
  std::set<std::pair<size_t, size_t>> dropped;  // (convolution, rank)
  for (size_t rank = 0; rank < kShortlist; ++rank) {
    std::vector<size_t> convs;
    for (size_t c = 0; c < state.shortlist.size(); ++c) {
      if (rank < state.shortlist[c].size()) convs.push_back(c);
    }
    RETURN_IF_ERROR(DropDeviating(state, rank, convs, dropped));
  }
  for (size_t c = 0; c < state.shortlist.size(); ++c) {
    NetworkPlan kept;
    for (size_t rank = 0; rank < state.shortlist[c].size(); ++rank) {
      if (dropped.count({c, rank}) == 0) kept.push_back(state.shortlist[c][rank]);
    }
    state.shortlist[c] = std::move(kept);
  }
  return absl::OkStatus();
}

// Checks all convolutions' candidates at once; if the result deviates, checks each half.
absl::Status PlanSearch::DropDeviating(BucketState& state, size_t rank, const std::vector<size_t>& convs,
                                       std::set<std::pair<size_t, size_t>>& dropped) {
  if (convs.empty()) return absl::OkStatus();
  if (timer_.is_out_of_time()) {
    for (const size_t c : convs) dropped.insert({c, rank});
    Note("there was no time to check candidates");
    return absl::OkStatus();
  }
  NetworkPlan plan = state.defaults;
  for (const size_t c : convs) plan[c] = state.shortlist[c][rank];
  ASSIGN_OR_RETURN(const std::string why, WhyUnfit(state, plan));
  if (why.empty()) return absl::OkStatus();
  if (convs.size() > 1) {
    const auto half = convs.begin() + static_cast<std::ptrdiff_t>(convs.size() / 2);
    RETURN_IF_ERROR(DropDeviating(state, rank, {convs.begin(), half}, dropped));
    return DropDeviating(state, rank, {half, convs.end()}, dropped);
  }
  const size_t c = convs.front();
  dropped.insert({c, rank});
  Note(absl::StrCat(program_.convs[c].node, " by ", Describe(state.shortlist[c][rank]), " is left out: ", why));
  return absl::OkStatus();
}

absl::Status PlanSearch::MeasureShortlist(BucketState& state) {
  std::vector<NetworkPlan> runs = {state.defaults};
  for (size_t rank = 0; rank < kShortlist; ++rank) {
    NetworkPlan run = state.defaults;
    for (size_t c = 0; c < run.size(); ++c) {
      if (rank < state.shortlist[c].size()) run[c] = state.shortlist[c][rank];
    }
    if (run != state.defaults) runs.push_back(std::move(run));
  }
  BeginStage("shortlist", kShortlistEnd, runs.size() * state.scans.size() * repeats());
  ASSIGN_OR_RETURN(const std::vector<PlanTimes> times,
                   timer_.Time(runs, state.scans, static_cast<int>(repeats()), /*times_convs=*/true));
  state.measured.resize(program_.convs.size());
  state.times.resize(program_.convs.size());
  for (size_t c = 0; c < program_.convs.size(); ++c) {
    for (size_t r = 0; r < runs.size(); ++r) {
      if (!times[r].is_whole || c >= times[r].convs.size() || (r > 0 && runs[r][c] == state.defaults[c])) continue;
      if (r > 0 && state.measured[c].empty()) continue;  // without the default there is nothing to compare with
      state.measured[c].push_back(runs[r][c]);
      state.times[c].push_back(times[r].convs[c]);
    }
  }
  return absl::OkStatus();
}

// Returns the index of the fastest plan in `measured`: the default (0) unless another is fast enough to be worth it.
// With `dataflow`, considers only the plans of this dataflow, and returns nullopt if `measured` has none.
std::optional<size_t> PlanSearch::Best(const BucketState& state, size_t conv, std::optional<Dataflow> dataflow) const {
  const NetworkPlan& plans = state.measured[conv];
  const std::vector<absl::Duration>& times = state.times[conv];
  std::optional<size_t> best;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (dataflow && plans[i].dataflow != *dataflow) continue;
    const bool is_better = !best || (*best == 0 ? times[i] < times[0] * kWorthwhile : times[i] < times[*best]);
    if (is_better) best = i;
  }
  return best;
}

// Returns the networks to compare as wholes, the default first. The others are: the best plan of each convolution; for
// each rulebook, the better dataflow for all of its convolutions; and for each dataflow, this dataflow for all
// convolutions that support it.
std::vector<NetworkPlan> PlanSearch::MixesOf(const BucketState& state) const {
  const size_t num_convs = program_.convs.size();
  const auto plan_of = [&](size_t conv, std::optional<Dataflow> dataflow) {
    std::optional<size_t> best = Best(state, conv, dataflow);
    if (!best) best = Best(state, conv, std::nullopt);
    return best ? state.measured[conv][*best] : state.defaults[conv];
  };
  std::vector<NetworkPlan> mixes = {state.defaults};
  const auto add = [&](const std::function<std::optional<Dataflow>(size_t)>& dataflow_of) {
    NetworkPlan mix;
    for (size_t c = 0; c < num_convs; ++c) mix.push_back(plan_of(c, dataflow_of(c)));
    if (std::find(mixes.begin(), mixes.end(), mix) == mixes.end()) mixes.push_back(std::move(mix));
  };
  add([](size_t) { return std::nullopt; });

  std::vector<Dataflow> better(program_.rulebooks.size(), Dataflows().front()->id());
  for (size_t rulebook = 0; rulebook < better.size(); ++rulebook) {
    absl::Duration least = absl::InfiniteDuration();
    for (const ConvDataflow* dataflow : Dataflows()) {
      absl::Duration total;
      for (size_t c = 0; c < num_convs; ++c) {
        const bool has_run = state.times[c].empty() || state.times[c][0] > absl::ZeroDuration();
        if (SearchedRulebook(c) != rulebook || !has_run) continue;
        const std::optional<size_t> best = Best(state, c, dataflow->id());
        total += best ? state.times[c][*best] : absl::InfiniteDuration();
      }
      if (total < least) {
        least = total;
        better[rulebook] = dataflow->id();
      }
    }
  }
  add([&](size_t conv) { return better[SearchedRulebook(conv)]; });
  for (const ConvDataflow* dataflow : Dataflows()) add([&](size_t) { return dataflow->id(); });
  return mixes;
}

absl::StatusOr<NetworkPlan> PlanSearch::ChooseDataflows(const BucketState& state) {
  std::vector<NetworkPlan> mixes = MixesOf(state);
  BeginStage("dataflows", kDataflowsEnd, mixes.size() * (2 + state.scans.size() * repeats()));
  std::vector<NetworkPlan> fit = {state.defaults};
  for (size_t i = 1; i < mixes.size() && !timer_.is_out_of_time(); ++i) {
    ASSIGN_OR_RETURN(const std::string why, WhyUnfit(state, mixes[i]));
    if (why.empty()) {
      fit.push_back(std::move(mixes[i]));
    } else {
      Note(absl::StrCat("a combination of candidates is left out: ", why));
    }
  }
  if (fit.size() == 1) return state.defaults;
  ASSIGN_OR_RETURN(const std::vector<PlanTimes> times,
                   timer_.Time(fit, state.scans, static_cast<int>(repeats()), /*times_convs=*/false));
  size_t best = 0;
  for (size_t i = 1; i < fit.size(); ++i) {
    if (times[0].is_whole && times[i].is_whole && times[i].network_total() < times[best].network_total()) best = i;
  }
  return fit[best];
}

absl::StatusOr<NetworkPlan> PlanSearch::ChooseMapSearches(const BucketState& state, NetworkPlan plan) {
  // Convolutions whose maps are searched in the table of one level. Kernels with one cell need no search.
  std::vector<std::vector<size_t>> by_level(program_.levels.size());
  for (size_t c = 0; c < program_.convs.size(); ++c) {
    const RulebookSpec& spec = program_.rulebooks[SearchedRulebook(c)].spec;
    if (spec.in_level == spec.out_level && spec.geometry.NumOffsets() == 1) continue;
    by_level[static_cast<size_t>(spec.in_level)].push_back(c);
  }
  struct Variant {
    size_t level = 0;
    kernels::MapSearch search = kernels::MapSearch::kHash;
  };
  std::vector<Variant> variants = {{}};  // the first is the plan itself
  std::vector<NetworkPlan> plans = {plan};
  const auto change = [&](const Variant& variant, NetworkPlan& changed) {
    for (const size_t conv : by_level[variant.level]) changed[conv].map_search = variant.search;
  };
  for (size_t level = 0; level < by_level.size(); ++level) {
    for (const kernels::MapSearch search : MapSearches(program_)) {
      NetworkPlan changed = plan;
      change({level, search}, changed);
      if (changed == plan) continue;
      variants.push_back({level, search});
      plans.push_back(std::move(changed));
    }
  }
  if (plans.size() == 1) return plan;
  BeginStage("map search", kMapsEnd, plans.size() * state.scans.size() * repeats());
  ASSIGN_OR_RETURN(const std::vector<PlanTimes> times,
                   timer_.Time(plans, state.scans, static_cast<int>(repeats()), /*times_convs=*/false));
  if (!times[0].is_whole) return plan;
  for (size_t level = 0; level < by_level.size(); ++level) {
    absl::Duration least = times[0].geometry_total() * kWorthwhile;
    for (size_t v = 1; v < variants.size(); ++v) {
      if (variants[v].level != level || !times[v].is_whole || times[v].geometry_total() >= least) continue;
      least = times[v].geometry_total();
      change(variants[v], plan);
    }
  }
  return plan;
}

absl::Status PlanSearch::Conclude(const ScanBucket& bucket, const BucketState& state,
                                  const std::vector<NetworkPlan>& found) {
  std::vector<NetworkPlan> plans = {state.defaults};
  for (const NetworkPlan& plan : found) {
    if (std::find(plans.begin(), plans.end(), plan) == plans.end()) plans.push_back(plan);
  }
  const size_t num_scans = state.scans.size();
  const size_t num_repeats = std::max(repeats(), (kFinalRuns + num_scans - 1) / num_scans);
  BeginStage("tuned against default", 1, plans.size() * num_scans * num_repeats);
  ASSIGN_OR_RETURN(const std::vector<PlanTimes> times,
                   timer_.Time(plans, state.scans, static_cast<int>(num_repeats), /*times_convs=*/false));
  size_t best = 0;
  for (size_t i = 1; i < plans.size(); ++i) {
    const absl::Duration to_beat = times[best].network_total() * (best == 0 ? kWorthwhile : 1.0);
    if (times[0].is_whole && times[i].is_whole && times[i].network_total() < to_beat) best = i;
  }
  if (!times[0].is_whole) {
    Note("there was no time to compare with the default, so the default stays");
  }
  result_.buckets.push_back({.bucket = {.min_voxels = bucket.min_voxels,
                                        .max_voxels = bucket.max_voxels,
                                        .plan = ByNode(program_, plans[best])},
                             .num_scans = static_cast<int>(num_scans),
                             .default_time = times[0].network_median(),
                             .tuned_time = times[best].network_median()});
  std::vector<ConvReport>& reports = result_.convs.emplace_back();
  for (size_t c = 0; c < program_.convs.size(); ++c) {
    const ProgramConv& conv = program_.convs[c];
    ConvReport report{
        .node = conv.node, .in_channels = conv.in_channels, .out_channels = conv.out_channels, .plan = plans[best][c]};
    const NetworkPlan& measured = state.measured[c];
    if (!measured.empty()) {
      ConvPlan plan = report.plan;
      plan.map_search = state.defaults[c].map_search;
      const auto index = static_cast<size_t>(std::find(measured.begin(), measured.end(), plan) - measured.begin());
      report.default_time = state.times[c][0] / static_cast<int64_t>(num_scans);
      report.tuned_time = state.times[c][index] / static_cast<int64_t>(num_scans);
    }
    reports.push_back(std::move(report));
  }
  return absl::OkStatus();
}

void PlanSearch::KeepDefault(size_t bucket) {
  TunedBucket& tuned = result_.buckets[bucket];
  const NetworkPlan& defaults = DefaultsOf(bucket);
  tuned.bucket.plan = ByNode(program_, defaults);
  tuned.tuned_time = tuned.default_time;
  for (size_t c = 0; c < defaults.size(); ++c) {
    ConvReport& report = result_.convs[bucket][c];
    report.plan = defaults[c];
    report.tuned_time = report.default_time;
  }
}

absl::Status PlanSearch::ConfirmTogether(const std::vector<ScanBucket>& buckets) {
  std::vector<const InferTask*> scans;
  std::vector<PlanTable::Bucket> found;
  for (size_t i = 0; i < buckets.size(); ++i) {
    scans.push_back(buckets[i].scans[buckets[i].scans.size() / 2].input);
    found.push_back(result_.buckets[i].bucket);
  }
  timer_.BeginStage("all sizes together", 1, static_cast<int64_t>(2 * scans.size() * kFinalRuns));
  ASSIGN_OR_RETURN(const std::vector<PlanTimes> times,
                   timer_.Time(std::vector<PlanTable>{program_.default_plans, PlanTable(program_, found)}, scans,
                               kFinalRuns, /*times_convs=*/false));
  for (size_t i = 0; i < buckets.size(); ++i) {
    const NetworkPlan& defaults = DefaultsOf(i);
    const std::vector<ConvReport>& convs = result_.convs[i];
    const bool is_default =
        std::equal(convs.begin(), convs.end(), defaults.begin(),
                   [](const ConvReport& report, const ConvPlan& plan) { return report.plan == plan; });
    const bool is_whole = times[0].is_whole && times[1].is_whole;
    if (is_default || (is_whole && times[1].network[i] < times[0].network[i] * kWorthwhile)) continue;
    KeepDefault(i);
    result_.notes.push_back(absl::StrCat("size ", i + 1, " of ", buckets.size(), " keeps the default: ",
                                         is_whole ? "its own plan is no faster when all sizes' plans run together"
                                                  : "there was no time to measure all sizes' plans together"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SearchResult> SearchPlan(const Program& program, const RunScan& run, absl::Span<const InferTask> scans,
                                        const SearchOptions& options) {
  return PlanSearch(program, run, options).Run(scans);
}

}  // namespace voxserve
