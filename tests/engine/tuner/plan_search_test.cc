// Tests the plan search on a fake device, whose times the tests define (fake_device.h).

#include "engine/tuner/plan_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error_reason.h"
#include "engine/tuner/plan_candidates.h"
#include "tests/engine/tuner/fake_device.h"

namespace voxserve::plan_search_test {
namespace {

using kernels::Grouping;
using kernels::MapSearch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PointCloud Scan(int64_t num_points) {
  const std::vector<float> points(static_cast<size_t>(num_points), 0.0f);
  return *PointCloud::FromFloats({"x"}, points.data(), static_cast<uint64_t>(num_points));
}

std::vector<InferTask> Scans(const std::vector<int64_t>& sizes) {
  std::vector<InferTask> scans;
  for (const int64_t size : sizes) scans.push_back({.cloud = Scan(size)});
  return scans;
}

bool IsImplicitGemm(const ConvPlan& plan) { return plan.dataflow == Dataflow::kImplicitGemm; }

class PlanSearchTest : public ::testing::Test {
 protected:
  absl::StatusOr<SearchResult> Search(const std::vector<int64_t>& sizes) {
    scans_ = Scans(sizes);
    return SearchPlan(program_, device_.AsRunScan(), scans_, options_);
  }
  // Returns the plan of the only bucket.
  NetworkPlan SearchOne(int64_t size = 50000) {
    result_ = *Search({size});
    EXPECT_EQ(result_.buckets.size(), 1u);
    return PlanOf(result_, 0);
  }
  NetworkPlan PlanOf(const SearchResult& result, size_t bucket) const {
    NetworkPlan plan;
    for (const ProgramConv& conv : program_.convs) {
      EXPECT_EQ(result.buckets[bucket].bucket.plan.by_node.count(conv.node), 1u) << conv.node;
      plan.push_back(result.buckets[bucket].bucket.plan.ForNode(conv.node));
    }
    return plan;
  }
  NetworkPlan Defaults() const { return program_.default_plans.ForVoxels(0); }

  Program program_ = FakeProgram(/*is_on_cuda=*/true);
  FakeDevice device_{program_};
  SearchOptions options_{.now = [this] { return device_.now(); }};
  std::vector<InferTask> scans_;
  SearchResult result_;
};

TEST_F(PlanSearchTest, KeepsTheDefaultWhereNothingIsFaster) {
  EXPECT_EQ(SearchOne(), Defaults());
  EXPECT_EQ(result_.buckets[0].default_time, absl::Microseconds(10 + 50 + 600 + 5));
  EXPECT_EQ(result_.buckets[0].tuned_time, result_.buckets[0].default_time);
  EXPECT_EQ(result_.buckets[0].bucket.min_voxels, 0);
  EXPECT_EQ(result_.buckets[0].bucket.max_voxels, PlanTable::kNoLimit);
  EXPECT_THAT(result_.notes, IsEmpty());
  EXPECT_EQ(result_.num_runs, device_.num_runs());
}

TEST_F(PlanSearchTest, FindsWhatIsPlantedForEachConvolution) {
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t) {
    switch (conv) {
      case 0:
        return IsImplicitGemm(plan) && plan.block.rows == 128 ? 20 : 100;
      case 2:
        return IsImplicitGemm(plan) && plan.block.rows == 256 ? 30 : 100;
      case 3:
        return IsImplicitGemm(plan) ? 200 : plan.grouping.grouping == Grouping::kSeparate ? 60 : 100;
      case 4:
        return plan.grouping.grouping == Grouping::kSeparate ? 70 : 100;
      default:
        return 100;
    }
  };
  const NetworkPlan plan = SearchOne();
  EXPECT_TRUE(IsImplicitGemm(plan[0]));
  EXPECT_EQ(plan[0].block.rows, 128);
  EXPECT_EQ(plan[1], Defaults()[1]);
  EXPECT_TRUE(IsImplicitGemm(plan[2]));
  EXPECT_EQ(plan[2].block.rows, 256);
  EXPECT_EQ(plan[3].grouping.grouping, Grouping::kSeparate);
  EXPECT_EQ(plan[4].grouping.grouping, Grouping::kSeparate);
  EXPECT_EQ(plan[5], Defaults()[5]);
  ASSERT_EQ(result_.convs.size(), 1u);
  EXPECT_EQ(result_.convs[0][0].node, "stem");
  EXPECT_EQ(result_.convs[0][0].default_time, absl::Microseconds(100));
  EXPECT_EQ(result_.convs[0][0].tuned_time, absl::Microseconds(20));
  EXPECT_EQ(result_.convs[0][0].plan, plan[0]);
  EXPECT_EQ(result_.buckets[0].default_time - result_.buckets[0].tuned_time, absl::Microseconds(80 + 70 + 40 + 30));
}

// A convolution does not run if only tensor outputs need it and the searched scans do not ask for them.
TEST_F(PlanSearchTest, AConvolutionThatDoesNotRunKeepsItsDefault) {
  // Each case lists the convolutions that do not run: one convolution of a rulebook that others also use; all
  // convolutions of a rulebook and of its reverse; all convolutions.
  const std::vector<std::vector<size_t>> cases = {{3}, {1, 4}, {0, 1, 2, 3, 4, 5}};
  for (const std::vector<size_t>& resting : cases) {
    const auto rests = [&](size_t conv) { return std::count(resting.begin(), resting.end(), conv) > 0; };
    device_.conv_us = [&](size_t conv, const ConvPlan& plan, int64_t) {
      return rests(conv) ? 0 : IsImplicitGemm(plan) ? 20 : 100;
    };
    const NetworkPlan plan = SearchOne();
    for (size_t c = 0; c < plan.size(); ++c) {
      if (rests(c)) {
        EXPECT_EQ(plan[c], Defaults()[c]) << c;
      } else if (c != 4) {  // convolution 4 has no implicit GEMM
        EXPECT_TRUE(IsImplicitGemm(plan[c])) << c;
      }
    }
  }
}

// Groupings need the numbers of pairs, which are not counted if the default plan reads tiles.
TEST_F(PlanSearchTest, FindsGroupingsBesideADefaultThatReadsTiles) {
  program_.default_plans = PlanTable(program_, {{.plan = {.fallback = kDefaultCudaConvPlan}}});
  const NetworkPlan defaults = Defaults();
  ASSERT_EQ(std::count_if(defaults.begin(), defaults.end(), IsImplicitGemm), 5);  // all convolutions except "up"
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t) {
    if (conv == 1) return plan.block.rows == 128 ? 80 : 100;
    return !IsImplicitGemm(plan) && plan.grouping.grouping == Grouping::kSeparate ? 60 : 100;
  };
  const NetworkPlan plan = SearchOne();
  EXPECT_TRUE(IsImplicitGemm(plan[1]));
  EXPECT_EQ(plan[1].block.rows, 128);
  for (const size_t conv : {0, 2, 3, 4, 5}) {
    EXPECT_EQ(plan[conv].dataflow, Dataflow::kGatherGemmScatter) << conv;
    EXPECT_EQ(plan[conv].grouping.grouping, Grouping::kSeparate) << conv;
  }
}

// The search finds the best of 1,050 parameter sets, although it measures only a few.
TEST_F(PlanSearchTest, FindsTheBestGroupingParameters) {
  constexpr int64_t kVoxels = 50000;
  const auto cost_us = [&](const ProgramRulebook& rulebook, const kernels::GroupingOptions& options) {
    std::vector<int64_t> begin = {0};
    for (const int64_t size : SizesOf(rulebook, kVoxels)) begin.push_back(begin.back() + size);
    const auto num_offsets = static_cast<int32_t>(begin.size()) - 1;
    const bool is_symmetric = rulebook.spec.geometry.IsSymmetric();
    const kernels::MatmulGrouping grouping =
        kernels::GroupMatmuls({.num_offsets = num_offsets,
                               .offset_begin = begin.data(),
                               .is_symmetric = is_symmetric,
                               .identity_offset = is_symmetric ? num_offsets / 2 : -1},
                              options);
    return 9.0 * static_cast<double>(grouping.groups.size()) + 2e-4 * static_cast<double>(grouping.num_gathered_rows);
  };
  device_.conv_us = [&](size_t conv, const ConvPlan& plan, int64_t) {
    if (IsImplicitGemm(plan)) return 1e4;
    return cost_us(program_.rulebooks[static_cast<size_t>(program_.convs[conv].rulebook)], plan.grouping);
  };
  const NetworkPlan plan = SearchOne(kVoxels);
  for (const size_t conv : {size_t{0}, size_t{1}, size_t{2}}) {
    const ProgramRulebook& rulebook = program_.rulebooks[static_cast<size_t>(program_.convs[conv].rulebook)];
    double least = cost_us(rulebook, Defaults()[conv].grouping);
    for (int e = 0; e <= 100; ++e) {
      for (int64_t rows = 256; rows < int64_t{1} << 21; rows = rows * 6 / 5) {
        least = std::min(least, cost_us(rulebook, {.epsilon = e * 0.01, .bmm_max_rows = rows}));
      }
    }
    EXPECT_LE(cost_us(rulebook, plan[conv].grouping), least * 1.0001) << conv;
  }
  EXPECT_LT(device_.num_runs(), 1000);
}

TEST_F(PlanSearchTest, AdvantagesBelowOnePercentAreNone) {
  device_.conv_us = [](size_t, const ConvPlan& plan, int64_t) {
    return IsImplicitGemm(plan) ? 200 : plan.grouping.grouping == Grouping::kSeparate ? 99.1 : 100;
  };
  EXPECT_EQ(SearchOne(), Defaults());
}

TEST_F(PlanSearchTest, SizesGetPlansOfTheirOwn) {
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t voxels) {
    if (conv != 2) return 100;
    return IsImplicitGemm(plan) == (voxels < 30000) ? 50 : 100;
  };
  const absl::StatusOr<SearchResult> result = Search({20000, 150000, 21000, 140000});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->buckets.size(), 2u);
  // Scans are cut into ranges at powers of two from 16k on. The two ranges between the scans (32k to 64k, 64k to 128k)
  // have no scan, and each joins the nearer bucket.
  EXPECT_EQ(result->buckets[0].bucket.min_voxels, 0);
  EXPECT_EQ(result->buckets[0].bucket.max_voxels, 65536);
  EXPECT_EQ(result->buckets[1].bucket.min_voxels, 65536);
  EXPECT_EQ(result->buckets[1].bucket.max_voxels, PlanTable::kNoLimit);
  EXPECT_EQ(result->buckets[0].num_scans, 2);
  EXPECT_TRUE(IsImplicitGemm(PlanOf(*result, 0)[2]));
  EXPECT_FALSE(IsImplicitGemm(PlanOf(*result, 1)[2]));
}

// The small size gains 100 us by reading tiles, and the large size gains 400 us by another grouping. If one plan has
// both the tiles and the pairs of the large size, the tiles cost 200 us.
TEST_F(PlanSearchTest, SizesThatLoseBesideTheOthersKeepTheDefault) {
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t voxels) {
    if (voxels < 30000) return (conv == 2 || conv == 3) && IsImplicitGemm(plan) ? 450 : 500;
    return conv == 0 && !IsImplicitGemm(plan) && plan.grouping.grouping == Grouping::kSeparate ? 100 : 500;
  };
  device_.forms_us = [](const PlanTable& table) {
    const RulebookForms& forms = table.forms()[kSubmanifold1];
    return forms.pairs && forms.tiles ? 200 : 0;
  };
  const absl::StatusOr<SearchResult> result = Search({20000, 150000});
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->buckets.size(), 2u);
  EXPECT_EQ(PlanOf(*result, 0), Defaults());
  EXPECT_EQ(result->buckets[0].tuned_time, result->buckets[0].default_time);
  EXPECT_THAT(result->notes, testing::Contains(HasSubstr("size 1 of 2 keeps the default")));
  EXPECT_NE(PlanOf(*result, 1), Defaults());
  EXPECT_LT(result->buckets[1].tuned_time, result->buckets[1].default_time);
}

// One bucket holds all scans. Half of them are faster with one plan, half with another. The sum of the times decides,
// not the median scan.
TEST_F(PlanSearchTest, AllScansOfABucketCount) {
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t voxels) {
    if (conv != 2 || !IsImplicitGemm(plan)) return 100;
    return voxels > 40000 ? 90 : 190;
  };
  EXPECT_EQ(PlanOf(*Search({35000, 45000}), 0), Defaults());
}

TEST_F(PlanSearchTest, SixteenScansOfABucketAreMeasured) {
  const absl::StatusOr<SearchResult> result = Search(std::vector<int64_t>(100, 5000));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->buckets[0].num_scans, 16);
}

TEST_F(PlanSearchTest, WhatComputesSomethingElseIsDropped) {
  device_.conv_us = [](size_t, const ConvPlan& plan, int64_t) {
    return !IsImplicitGemm(plan) ? 100 : plan.block.rows == 64 ? 30 : 50;
  };
  // The largest score is 4.0, so the limit of 2% is 0.08.
  device_.score_error = [](const NetworkPlan& plans) {
    return IsImplicitGemm(plans[3]) && plans[3].block.rows == 64 ? 0.15f : 0.05f;
  };
  const NetworkPlan plan = SearchOne();
  EXPECT_EQ(plan[0].block.rows, 64);
  EXPECT_EQ(plan[2].block.rows, 64);
  EXPECT_TRUE(IsImplicitGemm(plan[3]));
  EXPECT_NE(plan[3].block.rows, 64);
  ASSERT_EQ(result_.notes.size(), 1u);
  EXPECT_THAT(result_.notes[0], HasSubstr("deep.1 by implicit_gemm 64 x 64"));
  EXPECT_THAT(result_.notes[0], HasSubstr("a score is off by 0.1"));  // 0.15 minus the default's 0.05
}

TEST_F(PlanSearchTest, WhatDiffersFromRunToRunIsDroppedUnlessAllowed) {
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t) {
    return conv == 1 && IsImplicitGemm(plan) ? 30 : 100;
  };
  device_.is_nondeterministic = [](const NetworkPlan& plans) { return IsImplicitGemm(plans[1]); };
  EXPECT_EQ(SearchOne(), Defaults());
  ASSERT_EQ(result_.notes.size(), 3u);  // the default block, 64 rows and 128 rows
  EXPECT_THAT(result_.notes[0], HasSubstr("its results differ from run to run"));
  options_.may_be_nondeterministic = true;
  EXPECT_TRUE(IsImplicitGemm(SearchOne()[1]));
}

// If two convolutions of a rulebook use different dataflows, the rulebook needs both forms. Here both forms cost more
// than a convolution gains by its own dataflow.
TEST_F(PlanSearchTest, MixedDataflowsMustPayForBothForms) {
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t) {
    return conv == 2 && IsImplicitGemm(plan) ? 80 : conv == 3 && IsImplicitGemm(plan) ? 110 : 100;
  };
  const auto forms = [this](const NetworkPlan& plans) {
    std::set<std::pair<int, Dataflow>> made;
    for (size_t c = 0; c < plans.size(); ++c) made.insert({program_.convs[c].rulebook, plans[c].dataflow});
    return static_cast<double>(made.size());
  };
  device_.geometry_us = [&](const NetworkPlan& plans) { return 5 * forms(plans); };
  EXPECT_FALSE(IsImplicitGemm(SearchOne()[3]));
  EXPECT_TRUE(IsImplicitGemm(SearchOne()[2]));
  device_.geometry_us = [&](const NetworkPlan& plans) { return 15 * forms(plans); };
  // Implicit GEMM for both takes 190 us, the default takes 200 us, and a mix takes 180 + 15 us.
  const NetworkPlan both = SearchOne();
  EXPECT_TRUE(IsImplicitGemm(both[2]));
  EXPECT_TRUE(IsImplicitGemm(both[3]));
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t) {
    return conv == 2 && IsImplicitGemm(plan) ? 90 : IsImplicitGemm(plan) ? 120 : 100;
  };
  EXPECT_EQ(SearchOne(), Defaults());
}

TEST_F(PlanSearchTest, AGpuHasOneMapSearch) {
  device_.geometry_us = [](const NetworkPlan& plans) { return plans[0].map_search == MapSearch::kHash ? 100 : 10; };
  for (const ConvPlan& plan : SearchOne()) EXPECT_EQ(plan.map_search, MapSearch::kHash);
}

// Each convolution is faster on its own with its candidate, but the whole network is slower.
TEST_F(PlanSearchTest, KeepsTheDefaultWhereTheWholeDoesNotWin) {
  device_.conv_us = [](size_t, const ConvPlan& plan, int64_t) { return IsImplicitGemm(plan) ? 50 : 100; };
  device_.geometry_us = [](const NetworkPlan& plans) {
    return std::any_of(plans.begin(), plans.end(), IsImplicitGemm) ? 5000 : 50;
  };
  EXPECT_EQ(SearchOne(), Defaults());
}

TEST_F(PlanSearchTest, CandidatesThatFailAreNotes) {
  device_.conv_us = [](size_t, const ConvPlan& plan, int64_t) { return IsImplicitGemm(plan) ? 50 : 100; };
  device_.fails = [](const NetworkPlan& plans) {
    return plans[0].block.rows == 128 || plans[1].block.rows == 128 ? absl::ResourceExhaustedError("no memory")
                                                                    : absl::OkStatus();
  };
  const NetworkPlan plan = SearchOne();
  EXPECT_TRUE(IsImplicitGemm(plan[0]));
  EXPECT_NE(plan[0].block.rows, 128);
  EXPECT_THAT(result_.notes, ElementsAre(HasSubstr("runs of candidates failed")));
}

TEST_F(PlanSearchTest, AFailedDeviceEndsTheSearch) {
  device_.fails = [](const NetworkPlan& plans) {
    return IsImplicitGemm(plans[0])
               ? WithReason(absl::UnavailableError("an illegal address"), error_reason::kDeviceFailed)
               : absl::OkStatus();
  };
  EXPECT_EQ(Search({5000}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(PlanSearchTest, RefusedScansAreLeftOut) {
  device_.refused_above = 10000;
  const absl::StatusOr<SearchResult> result = Search({5000, 20000, 0, 6000});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->buckets.size(), 1u);
  EXPECT_EQ(result->buckets[0].num_scans, 2);
  EXPECT_THAT(result->notes, ElementsAre("scan 2 is left out: too many voxels", "scan 3 is left out: it has no voxel"));
}

TEST_F(PlanSearchTest, WithoutAScanThereIsNoPlan) {
  EXPECT_EQ(Search({}).status().code(), absl::StatusCode::kInvalidArgument);
  device_.refused_above = 10;
  options_.scan_names = {"a.bin", "b.bin"};
  const absl::Status status = Search({5000, 20000}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "none of the 2 scans can be run; b.bin is left out: too many voxels");
}

TEST_F(PlanSearchTest, CanBeStoppedBetweenAnyTwoBatches) {
  ASSERT_TRUE(Search({5000}).ok());
  const int64_t all = device_.num_runs();
  for (const int64_t stop_at : {int64_t{0}, int64_t{1}, all / 2, all - 1}) {
    int64_t calls = 0;
    options_.on_progress = [&](const SearchProgress&) { return calls++ < stop_at; };
    const int64_t before = device_.num_runs();
    EXPECT_EQ(Search({5000}).status().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(device_.num_runs() - before, stop_at);
  }
}

TEST_F(PlanSearchTest, ProgressNeverFalls) {
  double last = 0;
  std::vector<std::string> stages;
  options_.on_progress = [&](const SearchProgress& progress) {
    EXPECT_GE(progress.fraction, last);
    EXPECT_LE(progress.fraction, 1);
    last = progress.fraction;
    if (stages.empty() || stages.back() != progress.stage) stages.push_back(progress.stage);
    return true;
  };
  ASSERT_TRUE(Search({5000, 200000}).ok());
  EXPECT_GT(last, 0.95);
  EXPECT_EQ(stages.front(), "sizes");
  EXPECT_EQ(stages[1], "size 1 of 2: candidates");
  EXPECT_EQ(stages.back(), "all sizes together");
}

TEST_F(PlanSearchTest, EndsWithinItsTime) {
  device_.conv_us = [](size_t, const ConvPlan& plan, int64_t) { return IsImplicitGemm(plan) ? 50 : 100; };
  device_.run_takes = absl::Milliseconds(10);
  options_.repeats = 50;
  for (const int64_t runs : {1, 30, 300, 1000, 3000}) {
    options_.time_limit = runs * device_.run_takes;
    const int64_t before = device_.num_runs();
    const absl::StatusOr<SearchResult> result = Search({5000, 6000, 90000});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_LE(device_.num_runs() - before, runs + 10) << runs;
    EXPECT_FALSE(result->buckets.empty());
    // From 1000 runs on, the search finds the plan although it skips most candidates.
    if (runs >= 1000) {
      EXPECT_TRUE(IsImplicitGemm(PlanOf(*result, 0)[0])) << runs;
    }
    if (runs == 1) {
      EXPECT_EQ(PlanOf(*result, 0), Defaults());
      EXPECT_THAT(result->notes, testing::Contains(HasSubstr("there was no time")));
    }
  }
}

TEST_F(PlanSearchTest, IsDeterministic) {
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t voxels) {
    const size_t hash = std::hash<std::string>()(absl::StrCat(Describe(plan), conv, voxels));
    return 50 + static_cast<double>(hash % 100);
  };
  const absl::StatusOr<SearchResult> first = Search({5000, 9000, 100000});
  const absl::StatusOr<SearchResult> second = Search({5000, 9000, 100000});
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_EQ(first->buckets.size(), second->buckets.size());
  for (size_t i = 0; i < first->buckets.size(); ++i) {
    EXPECT_EQ(PlanOf(*first, i), PlanOf(*second, i));
    EXPECT_LE(first->buckets[i].tuned_time, first->buckets[i].default_time);
  }
}

class CpuPlanSearchTest : public PlanSearchTest {
 protected:
  CpuPlanSearchTest() { program_ = FakeProgram(/*is_on_cuda=*/false); }
};

TEST_F(CpuPlanSearchTest, FindsHowEachLevelIsSearched) {
  device_.geometry_us = [](const NetworkPlan& plans) {
    double us = 100;
    us += plans[0].map_search == MapSearch::kGrid ? 20 : 0;   // level 0
    us -= plans[2].map_search == MapSearch::kGrid ? 10 : 0;   // level 1
    us -= plans[1].map_search == MapSearch::kGrid ? 0.5 : 0;  // level 0 again
    return us;
  };
  const NetworkPlan plan = SearchOne();
  for (const size_t level0 : {0, 1, 4, 5}) EXPECT_EQ(plan[level0].map_search, MapSearch::kMerge) << level0;
  for (const size_t level1 : {2, 3}) EXPECT_EQ(plan[level1].map_search, MapSearch::kGrid) << level1;
  EXPECT_EQ(result_.buckets[0].default_time - result_.buckets[0].tuned_time, absl::Microseconds(10));
}

TEST_F(CpuPlanSearchTest, FindsBlocksAndMapSearches) {
  device_.conv_us = [](size_t conv, const ConvPlan& plan, int64_t) {
    return conv == 1 && plan.block.rows == 512 ? 40 : conv == 3 && plan.block.rows == 64 ? 90 : 100;
  };
  device_.geometry_us = [](const NetworkPlan& plans) { return plans[2].map_search == MapSearch::kHash ? 50 : 60; };
  const NetworkPlan plan = SearchOne();
  EXPECT_EQ(plan[0].block.rows, 0);
  EXPECT_EQ(plan[1].block.rows, 512);
  EXPECT_EQ(plan[3].block.rows, 64);
  EXPECT_EQ(plan[0].map_search, MapSearch::kMerge);
  EXPECT_EQ(plan[2].map_search, MapSearch::kHash);
  for (const ConvPlan& conv : plan) EXPECT_EQ(conv.dataflow, Dataflow::kFetchOnDemand);
}

}  // namespace
}  // namespace voxserve::plan_search_test
