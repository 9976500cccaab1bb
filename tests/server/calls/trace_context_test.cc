#include "server/calls/trace_context.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace voxserve::trace_context_test {
namespace {

constexpr char kTraceId[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kSpanId[] = "00f067aa0ba902b7";

std::string Traceparent(const std::string& version = "00", const std::string& trace_id = kTraceId,
                        const std::string& span_id = kSpanId, const std::string& flags = "01") {
  return absl::StrCat(version, "-", trace_id, "-", span_id, "-", flags);
}

void ExpectValid(const std::string& text) {
  const TraceContext trace = ParseTraceparent(text);
  EXPECT_EQ(trace.trace_id, kTraceId) << text;
  EXPECT_EQ(trace.span_id, kSpanId) << text;
}

void ExpectInvalid(const std::string& text) {
  const TraceContext trace = ParseTraceparent(text);
  EXPECT_EQ(trace.trace_id, "") << text;
  EXPECT_EQ(trace.span_id, "") << text;
}

TEST(TraceContextTest, ReadsVersion00WithAnyFlags) {
  for (const char* flags : {"00", "01", "ff", "a9"}) ExpectValid(Traceparent("00", kTraceId, kSpanId, flags));
}

TEST(TraceContextTest, ReadsTheBeginningOfLaterVersions) {
  for (const char* version : {"01", "cc", "fe"}) {
    ExpectValid(Traceparent(version));
    ExpectValid(Traceparent(version) + "-what-comes-later");
    ExpectValid(Traceparent(version) + "-");
    ExpectInvalid(Traceparent(version) + "x");
  }
}

TEST(TraceContextTest, RefusesWhatTheStandardDoes) {
  ExpectInvalid("");
  ExpectInvalid("-");
  ExpectInvalid(Traceparent("ff"));
  ExpectInvalid(Traceparent("0"));
  ExpectInvalid(Traceparent("0G"));
  ExpectInvalid(Traceparent("00", std::string(32, '0')));
  ExpectInvalid(Traceparent("00", kTraceId, std::string(16, '0')));
  ExpectInvalid(Traceparent("00", "4BF92F3577B34DA6A3CE929D0E0E4736"));
  ExpectInvalid(Traceparent("00", kTraceId, "00F067AA0BA902B7"));
  ExpectInvalid(Traceparent("00", kTraceId, kSpanId, "0A"));
  ExpectInvalid(Traceparent("00", kTraceId, kSpanId, "1"));
  ExpectInvalid(Traceparent("00", kTraceId, kSpanId, "001"));
  ExpectInvalid(Traceparent("00", std::string(kTraceId) + "a"));
  ExpectInvalid(Traceparent("00", absl::StrCat("\xff\xff\xff\xff", std::string(28, 'a'))));
  ExpectInvalid(Traceparent("00", absl::StrCat("abcd\n", std::string(27, 'a'))));
  ExpectInvalid(Traceparent() + "-");
  ExpectInvalid(Traceparent() + "-more");
  ExpectInvalid(absl::StrCat(" ", Traceparent()));
  ExpectInvalid(Traceparent() + " ");
  ExpectInvalid(Traceparent() + "," + Traceparent());
  ExpectInvalid(Traceparent() + std::string(100'000, '0'));
}

TEST(TraceContextTest, EveryBeginningOfAValidTextIsInvalid) {
  const std::string text = Traceparent();
  for (size_t size = 0; size < text.size(); ++size) ExpectInvalid(text.substr(0, size));
}

TEST(TraceContextTest, EveryOtherSeparatorIsInvalid) {
  for (const size_t place : {2, 35, 52}) {
    std::string text = Traceparent();
    ASSERT_EQ(text[place], '-');
    text[place] = '_';
    ExpectInvalid(text);
  }
}

TEST(TraceContextTest, OnlyOneInTheMetadataCounts) {
  const std::string first = Traceparent();
  const std::string second = Traceparent("00", "a3ce929d0e0e47364bf92f3577b34da6");
  EXPECT_EQ(TraceContextOf({}).trace_id, "");
  EXPECT_EQ(TraceContextOf({{"tracestate", first}}).trace_id, "");
  EXPECT_EQ(TraceContextOf({{"a", "b"}, {"traceparent", first}, {"z", "y"}}).trace_id, kTraceId);
  EXPECT_EQ(TraceContextOf({{"traceparent", first}, {"traceparent", second}}).trace_id, "");
  EXPECT_EQ(TraceContextOf({{"traceparent", first}, {"traceparent", first}}).trace_id, "");
}

}  // namespace
}  // namespace voxserve::trace_context_test
