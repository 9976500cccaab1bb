// Tests StreamSession with the frames of one vehicle: which frames run, which are superseded, and that each gets one
// answer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <new>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/serving/streams/stream_session_fixture.h"

namespace voxserve::stream_session_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(StreamSessionTest, PassesOnWhatTheStreamAsksFor) {
  session_ = Open({.version = 3, .return_scores = true, .priority = 2});
  Push(10);
  const InferTask& task = engine_.task(10);
  EXPECT_EQ(task.model, "m");
  EXPECT_EQ(task.version, 3);
  EXPECT_TRUE(task.return_scores);
  EXPECT_EQ(task.priority, 2);
  EXPECT_EQ(task.deadline, absl::InfiniteFuture()) << "the model's own";
  EXPECT_TRUE(task.sweeps.empty());
  EXPECT_EQ(AnswerTo(10), "");
  engine_.End(10);
  EXPECT_EQ(AnswerTo(10), "OK");
  EXPECT_EQ(num_sweeps_[10], 0);
  EXPECT_TRUE(observer_.drops.empty());
}

TEST_F(StreamSessionTest, AFrameThatTheEngineHasNoMemoryForIsAnsweredSo) {
  for (const StreamPolicy policy : {StreamPolicy::kLatest, StreamPolicy::kQueue}) {
    answers_.clear();
    session_ = Open({.policy = policy});
    engine_.on_submit = [] { throw std::bad_alloc(); };
    Push(1);
    EXPECT_EQ(AnswerTo(1), "OUT_OF_MEMORY");
    Push(2);
    EXPECT_THAT(engine_.queued(), ElementsAre(2)) << "the stream goes on";
    engine_.End(2);
    EXPECT_EQ(AnswerTo(2), "OK");
  }
}

TEST_F(StreamSessionTest, ACancellationThatHasNoMemoryLosesNothing) {
  session_ = StreamSession::Create({.model = "m"},
                                   {.submit = [this](InferTask task) { return engine_.Submit(std::move(task)); },
                                    .cancel = [](uint64_t, DropReason) -> bool { throw std::bad_alloc(); }});
  Push(1);
  Push(2);  // supersedes frame 1
  engine_.End(1);
  engine_.End(2);
  EXPECT_EQ(AnswerTo(1), "OK");
  EXPECT_EQ(AnswerTo(2), "OK");
}

TEST_F(StreamSessionTest, ANewerFrameSupersedesTheOneThatWaits) {
  OpenLatest();
  Push(1);
  engine_.Start(1);
  Push(2);
  EXPECT_THAT(engine_.queued(), IsEmpty()) << "one at a time";
  Push(3);
  EXPECT_EQ(AnswerTo(2), "SUPERSEDED");
  EXPECT_EQ(answers_.at(2).status().code(), absl::StatusCode::kAborted);
  Push(4);
  EXPECT_EQ(AnswerTo(3), "SUPERSEDED");
  engine_.End(1);
  EXPECT_EQ(AnswerTo(1), "OK");
  EXPECT_THAT(engine_.queued(), ElementsAre(4));
  engine_.End(4);
  EXPECT_THAT(order_, ElementsAre(2, 3, 1, 4));
  EXPECT_EQ(observer_.drops, (std::map<std::string, int>{{"m superseded", 2}}));
  EXPECT_TRUE(session_->HasRoom());
}

TEST_F(StreamSessionTest, ANewerFrameSupersedesTheOneInTheEnginesQueue) {
  OpenLatest();
  Push(1);
  Push(2);
  EXPECT_EQ(AnswerTo(1), "SUPERSEDED");
  EXPECT_THAT(engine_.queued(), ElementsAre(2));
  Push(3);
  EXPECT_EQ(AnswerTo(2), "SUPERSEDED");
  EXPECT_THAT(engine_.queued(), ElementsAre(3));
  engine_.End(3);
  EXPECT_EQ(AnswerTo(3), "OK");
}

TEST_F(StreamSessionTest, AFrameThatIsStillBeingSubmittedIsSupersededToo) {
  OpenLatest();
  Push(1);
  engine_.Start(1);
  Push(2);
  engine_.on_submit = [this] { Push(3); };  // called while frame 2 is submitted
  engine_.End(1);
  EXPECT_EQ(AnswerTo(2), "SUPERSEDED");
  EXPECT_THAT(engine_.queued(), ElementsAre(3));
}

TEST_F(StreamSessionTest, AFrameThatStartedAsANewerOneCameIsAnswered) {
  OpenLatest();
  Push(1);
  engine_.Start(1);
  Push(2);
  engine_.End(1);
  engine_.Start(2);
  Push(3);
  engine_.End(2);
  EXPECT_EQ(AnswerTo(2), "OK");
}

TEST_F(StreamSessionTest, ADeadlineThatPassedInTheQueueIsNoSupersession) {
  OpenLatest();
  Push(1);
  engine_.cancel_answer = WithReason(absl::DeadlineExceededError("late"), error_reason::kDeadlineExpired);
  Push(2);
  EXPECT_EQ(AnswerTo(1), "DEADLINE_EXPIRED");
  EXPECT_TRUE(observer_.drops.empty()) << "the engine has told of it";
}

// Pushes a frame every 100 ms to an engine that takes 250 ms for a frame.
TEST_F(StreamSessionTest, EveryRunIsOfTheNewestFrame) {
  OpenLatest();
  constexpr uint64_t kNumFrames = 100;
  absl::Time busy_until = absl::InfinitePast();
  uint64_t newest = 0;
  int num_ok = 0;
  for (int64_t ms = 0; newest < kNumFrames || !engine_.running().empty(); ++ms) {
    now_ = kStart + absl::Milliseconds(ms);
    if (ms % 100 == 0 && newest < kNumFrames) Push(++newest);
    if (!engine_.running().empty() && now_ >= busy_until) {
      ++num_ok;
      engine_.End(engine_.running()[0]);
    }
    if (engine_.running().empty() && !engine_.queued().empty()) {
      ASSERT_THAT(engine_.queued(), ElementsAre(newest));
      engine_.Start(newest);
      busy_until = now_ + absl::Milliseconds(250);
    }
  }
  EXPECT_EQ(answers_.size(), kNumFrames);
  EXPECT_EQ(num_ok, 41) << "of 9.9 s: one every 250 ms, and the last frame";
  EXPECT_EQ(observer_.drops["m superseded"], static_cast<int>(kNumFrames) - num_ok);
  EXPECT_EQ(AnswerTo(kNumFrames), "OK");
}

TEST_F(StreamSessionTest, WhatTheEngineRefusesIsThatFramesAnswer) {
  OpenLatest();
  engine_.refuse_next = WithReason(absl::ResourceExhaustedError("full"), error_reason::kQueueFull);
  Push(1);
  EXPECT_EQ(AnswerTo(1), "QUEUE_FULL");
  Push(2);
  engine_.Start(2);
  Push(3);
  engine_.End(2, WithReason(absl::InternalError("a bug"), error_reason::kInternal));
  EXPECT_EQ(AnswerTo(2), "INTERNAL");
  EXPECT_THAT(engine_.queued(), ElementsAre(3));
}

TEST_F(StreamSessionTest, ABadFrameEndsNothingButItself) {
  OpenLatest();
  Push(1);
  engine_.Start(1);
  Push(2);
  StreamFrame bad = FrameOf(3);
  bad.cloud = WithReason(absl::InvalidArgumentError("no"), error_reason::kBadLayout);
  session_->Push(std::move(bad));
  EXPECT_EQ(AnswerTo(3), "BAD_LAYOUT");
  EXPECT_EQ(AnswerTo(2), "") << "it is the newest good one";
  engine_.End(1);
  engine_.End(2);
  EXPECT_THAT(order_, ElementsAre(3, 1, 2));
}

TEST_F(StreamSessionTest, QueueAnswersInOrder) {
  OpenQueue(4);
  Push(1);
  Push(2);
  Push(3);
  EXPECT_THAT(engine_.queued(), ElementsAre(1, 2, 3)) << "all at once";
  EXPECT_TRUE(session_->HasRoom());
  Push(4);
  EXPECT_FALSE(session_->HasRoom());
  engine_.End(3);
  engine_.End(2);
  EXPECT_THAT(order_, IsEmpty());
  EXPECT_FALSE(session_->HasRoom());
  engine_.End(1);
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
  EXPECT_TRUE(session_->HasRoom());
  engine_.End(4);
  EXPECT_THAT(order_, ElementsAre(1, 2, 3, 4));
  for (uint64_t frame = 1; frame <= 4; ++frame) EXPECT_EQ(AnswerTo(frame), "OK");
  EXPECT_TRUE(observer_.drops.empty());
}

TEST_F(StreamSessionTest, QueueKeepsErrorsInOrderToo) {
  OpenQueue();
  Push(1);
  engine_.refuse_next = WithReason(absl::ResourceExhaustedError("full"), error_reason::kQueueFull);
  Push(2);
  StreamFrame bad = FrameOf(3);
  bad.cloud = WithReason(absl::InvalidArgumentError("no"), error_reason::kBadLayout);
  session_->Push(std::move(bad));
  EXPECT_THAT(order_, IsEmpty());
  engine_.End(1);
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
  EXPECT_EQ(AnswerTo(2), "QUEUE_FULL");
  EXPECT_EQ(AnswerTo(3), "BAD_LAYOUT");
}

TEST_F(StreamSessionTest, AFullQueueOfOneHasRoomAgainInItsAnswer) {
  OpenQueue(1);
  StreamFrame frame = FrameOf(1);
  bool had_room = false;
  frame.done = [&](const absl::StatusOr<InferResult>&, int) { had_room = session_->HasRoom(); };
  session_->Push(std::move(frame));
  EXPECT_FALSE(session_->HasRoom());
  engine_.End(1);
  EXPECT_TRUE(had_room) << "this is where the caller reads on";
}

TEST_F(StreamSessionTest, AFramesTimeCountsFromItsArrival) {
  session_ = Open({.frame_timeout = absl::Milliseconds(100)});
  Push(1);
  EXPECT_EQ(engine_.task(1).deadline, kStart + absl::Milliseconds(100));
  engine_.Start(1);
  EXPECT_EQ(session_->NextExpiry(), absl::InfiniteFuture()) << "what the engine has it ends itself";
  now_ += absl::Milliseconds(20);
  Push(2);
  EXPECT_EQ(session_->NextExpiry(), kStart + absl::Milliseconds(120));
  now_ += absl::Milliseconds(30);
  engine_.End(1);
  EXPECT_EQ(AnswerTo(1), "OK");
  EXPECT_EQ(engine_.task(2).deadline, kStart + absl::Milliseconds(120)) << "though it was submitted later";
  EXPECT_EQ(engine_.task(2).arrived, kStart + absl::Milliseconds(20)) << "the engine counts what it waited here";
  EXPECT_EQ(engine_.task(2).waiting_since, now_) << "and gives it no place before those who asked earlier";
  engine_.End(2);
  EXPECT_EQ(AnswerTo(2), "OK");
}

TEST_F(StreamSessionTest, AFrameThatWaitsExpiresOnTime) {
  session_ = Open({.frame_timeout = absl::Milliseconds(100)});
  Push(1);
  engine_.Start(1);
  now_ += absl::Milliseconds(20);
  Push(2);
  now_ += absl::Milliseconds(99);
  session_->ExpireDue();
  EXPECT_EQ(AnswerTo(2), "");
  now_ += absl::Milliseconds(1);
  session_->ExpireDue();
  EXPECT_EQ(AnswerTo(2), "DEADLINE_EXPIRED");
  EXPECT_EQ(observer_.drops, (std::map<std::string, int>{{"m expired", 1}}));
  EXPECT_EQ(session_->NextExpiry(), absl::InfiniteFuture());
  engine_.End(1);
  EXPECT_EQ(AnswerTo(1), "DEADLINE_EXPIRED") << "an answer that is too late is none";
  Push(3);
  engine_.End(3);
  EXPECT_EQ(AnswerTo(3), "OK");
}

TEST_F(StreamSessionTest, WhatIsLateIsNotSubmitted) {
  session_ = Open({.frame_timeout = absl::Milliseconds(100)});
  Push(1);
  engine_.Start(1);
  now_ += absl::Milliseconds(50);
  Push(2);
  now_ += absl::Milliseconds(100);
  engine_.End(1);  // before the timer looks
  EXPECT_THAT(engine_.queued(), IsEmpty());
  EXPECT_EQ(AnswerTo(2), "DEADLINE_EXPIRED");
}

TEST_F(StreamSessionTest, CancelledFramesAllGetAnAnswer) {
  OpenQueue();
  Push(1);
  Push(2);
  engine_.Start(1);
  const absl::Status why = WithReason(absl::CancelledError("gone"), error_reason::kCancelled);
  session_->Cancel(why);
  EXPECT_THAT(engine_.queued(), IsEmpty());
  engine_.End(1);
  EXPECT_THAT(order_, ElementsAre(1, 2));
  EXPECT_EQ(answers_.at(1).status(), why) << "nobody wants it any more";
  EXPECT_EQ(answers_.at(2).status(), why);
  Push(3);
  EXPECT_EQ(answers_.at(3).status(), why);
  session_->Cancel(absl::InternalError("again"));
  Push(4);
  EXPECT_EQ(answers_.at(4).status(), why);
}

TEST_F(StreamSessionTest, CancelAnswersTheOneThatWaitsAndKeepsTheEnginesOwnErrors) {
  OpenLatest();
  Push(1);
  engine_.Start(1);
  Push(2);
  const absl::Status why = WithReason(absl::DeadlineExceededError("over"), error_reason::kDeadlineExpired);
  session_->Cancel(why);
  EXPECT_EQ(answers_.at(2).status(), why);
  EXPECT_EQ(observer_.drops, (std::map<std::string, int>{{"m expired", 1}}));
  engine_.End(1, WithReason(absl::InternalError("a bug"), error_reason::kInternal));
  EXPECT_EQ(AnswerTo(1), "INTERNAL");
}

TEST_F(StreamSessionTest, AFrameThatIsBeingSubmittedIsCancelledToo) {
  OpenLatest();
  engine_.on_submit = [this] { session_->Cancel(WithReason(absl::CancelledError("gone"), error_reason::kCancelled)); };
  Push(1);
  EXPECT_EQ(AnswerTo(1), "CANCELLED");
  EXPECT_THAT(engine_.queued(), IsEmpty());
}

TEST_F(StreamSessionTest, ADrainAnswersWhatWasTaken) {
  OpenLatest();
  Push(1);
  engine_.Start(1);
  Push(2);
  session_->StartDraining();
  Push(3);
  EXPECT_EQ(AnswerTo(3), "DRAINING");
  EXPECT_EQ(answers_.at(3).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(observer_.drops, (std::map<std::string, int>{{"m draining", 1}}));
  EXPECT_EQ(AnswerTo(2), "") << "a frame that is not taken supersedes none";
  engine_.End(1);
  engine_.End(2);
  EXPECT_EQ(AnswerTo(1), "OK");
  EXPECT_EQ(AnswerTo(2), "OK");
}

TEST_F(StreamSessionTest, ADrainTakesTheFrameThatHasBegunToCome) {
  OpenLatest();
  session_->StartDraining();
  StreamFrame begun = FrameOf(1);
  begun.is_accepted = true;
  session_->Push(std::move(begun));
  StreamFrame failed = FrameOf(2);
  failed.is_accepted = true;
  failed.cloud = WithReason(absl::InvalidArgumentError("half"), error_reason::kFrameIncomplete);
  session_->Push(std::move(failed));
  EXPECT_EQ(AnswerTo(2), "FRAME_INCOMPLETE");
  engine_.End(1);
  EXPECT_EQ(AnswerTo(1), "OK");
  EXPECT_TRUE(observer_.drops.empty());
}

TEST_F(StreamSessionTest, AFrameThatWasAddedHasItsPlaceBeforeItIsAnswered) {
  OpenQueue();
  StreamFrame failed = FrameOf(1);
  failed.cloud = WithReason(absl::InvalidArgumentError("half"), error_reason::kFrameIncomplete);
  session_->Add(std::move(failed));
  EXPECT_EQ(AnswerTo(1), "") << "Add calls nothing";
  Push(2);
  EXPECT_EQ(AnswerTo(1), "FRAME_INCOMPLETE");
  engine_.End(2);
  session_->Add(FrameOf(3));
  EXPECT_THAT(engine_.queued(), IsEmpty());
  session_->Advance();
  EXPECT_THAT(engine_.queued(), ElementsAre(3));
  engine_.End(3);
  EXPECT_THAT(order_, ElementsAre(1, 2, 3));
}

TEST_F(StreamSessionTest, SaysWhatTheNextFrameTakesThePlaceOf) {
  OpenLatest();
  EXPECT_EQ(session_->BytesAheadOfNext(), 0);
  Push(1);
  engine_.Start(1);
  Push(20);
  EXPECT_EQ(session_->BytesAheadOfNext(), (1 + 20) * 12);
  Push(300);
  EXPECT_EQ(session_->BytesAheadOfNext(), (1 + 300) * 12);
  engine_.End(1);
  engine_.End(300);
  EXPECT_EQ(session_->BytesAheadOfNext(), 0);
  OpenQueue();
  Push(2);
  EXPECT_EQ(session_->BytesAheadOfNext(), 0) << "nothing gives way in a queue";
}

TEST_F(StreamSessionTest, AFrameThatFoundNoRoomIsDroppedOnce) {
  OpenLatest();
  const auto push_full = [this](uint64_t points) {
    StreamFrame frame = FrameOf(points);
    frame.cloud = WithReason(absl::ResourceExhaustedError("full"), error_reason::kQueueFull);
    session_->Push(std::move(frame));
  };
  push_full(1);
  EXPECT_EQ(AnswerTo(1), "QUEUE_FULL");
  EXPECT_EQ(observer_.drops, (std::map<std::string, int>{{"m queue_full", 1}}));
  session_->StartDraining();
  push_full(2);
  EXPECT_EQ(AnswerTo(2), "DRAINING");
  session_->Cancel(WithReason(absl::CancelledError("gone"), error_reason::kCancelled));
  push_full(3);
  EXPECT_EQ(AnswerTo(3), "CANCELLED");
  EXPECT_EQ(observer_.drops, (std::map<std::string, int>{{"m queue_full", 1}, {"m draining", 1}, {"m cancelled", 1}}));
}

// Frames come, start and end in random order. Each frame that does not run must be reported once, with the reason that
// its answer has.
TEST_F(StreamSessionTest, EveryFrameThatDoesNotRunIsDroppedOnce) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    answers_.clear();
    observer_.drops.clear();
    session_ = Open({.policy = seed % 2 == 0 ? StreamPolicy::kLatest : StreamPolicy::kQueue,
                     .frame_timeout = absl::Milliseconds(30),
                     .max_queued_frames = StreamSession::kMaxQueuedFrames});
    uint64_t num_frames = 0;
    std::set<uint64_t> started;
    const auto any_of = [&](const std::vector<uint64_t>& frames) { return frames[random() % frames.size()]; };
    for (int step = 0; step < 60; ++step) {
      now_ += absl::Milliseconds(random() % 5);
      const auto action = random() % 16;
      if (action < 6) {
        Push(++num_frames);
      } else if (action < 9 && !engine_.queued().empty()) {
        const uint64_t frame = any_of(engine_.queued());
        started.insert(frame);
        engine_.Start(frame);
      } else if (action < 13 && !engine_.running().empty()) {
        engine_.End(any_of(engine_.running()));
      } else if (action == 13) {
        session_->ExpireDue();
      } else if (action == 14 && step > 40) {
        session_->StartDraining();
      } else if (action == 15 && step > 50) {
        session_->Cancel(WithReason(absl::CancelledError("gone"), error_reason::kCancelled));
      }
    }
    session_->Cancel(WithReason(absl::CancelledError("the end"), error_reason::kCancelled));
    while (!engine_.running().empty()) engine_.End(engine_.running()[0]);
    ASSERT_EQ(answers_.size(), num_frames) << seed;
    const std::map<std::string, std::string> fate_of = {{"SUPERSEDED", "m superseded"},
                                                        {"DEADLINE_EXPIRED", "m expired"},
                                                        {"CANCELLED", "m cancelled"},
                                                        {"DRAINING", "m draining"}};
    std::map<std::string, int> expected;
    for (uint64_t frame = 1; frame <= num_frames; ++frame) {
      if (!started.contains(frame)) ++expected[fate_of.at(AnswerTo(frame))];
    }
    EXPECT_EQ(observer_.drops, expected) << seed;
  }
}

TEST_F(StreamSessionTest, ADrainedQueueStaysInOrder) {
  OpenQueue();
  Push(1);
  session_->StartDraining();
  Push(2);
  EXPECT_THAT(order_, IsEmpty());
  engine_.End(1);
  EXPECT_THAT(order_, ElementsAre(1, 2));
  EXPECT_EQ(AnswerTo(2), "DRAINING");
}

TEST_F(StreamSessionTest, TheEngineKeepsASessionAlive) {
  OpenLatest();
  Push(1);
  const std::weak_ptr<StreamSession> session = session_;
  session_.reset();
  EXPECT_FALSE(session.expired());
  engine_.End(1);
  EXPECT_EQ(AnswerTo(1), "OK");
  EXPECT_TRUE(session.expired()) << "nothing holds it any more";
}

}  // namespace
}  // namespace voxserve::stream_session_test
