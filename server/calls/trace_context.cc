#include "server/calls/trace_context.h"

#include <cstddef>
#include <iterator>

namespace voxserve {
namespace {

// The W3C Trace Context header traceparent: version "-" trace-id "-" parent-id "-" trace-flags, in hexadecimal digits.
constexpr size_t kVersionChars = 2;
constexpr size_t kTraceIdChars = 32;
constexpr size_t kSpanIdChars = 16;
constexpr size_t kFlagsChars = 2;

// Removes `size` lower-case hexadecimal digits from the beginning of the text and returns them. Returns "", and leaves
// the text as it is, if the text does not begin with as many.
std::string_view TakeHex(std::string_view* text, size_t size) {
  if (text->size() < size) return "";
  const std::string_view digits = text->substr(0, size);
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return "";
  text->remove_prefix(size);
  return digits;
}

bool TakeDash(std::string_view* text) {
  if (text->empty() || text->front() != '-') return false;
  text->remove_prefix(1);
  return true;
}

bool IsZero(std::string_view digits) { return digits.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

TraceContext ParseTraceparent(std::string_view text) {
  const std::string_view version = TakeHex(&text, kVersionChars);
  if (version.empty() || version == "ff" || !TakeDash(&text)) return {};
  const std::string_view trace_id = TakeHex(&text, kTraceIdChars);
  if (IsZero(trace_id) || !TakeDash(&text)) return {};
  const std::string_view span_id = TakeHex(&text, kSpanIdChars);
  if (IsZero(span_id) || !TakeDash(&text)) return {};
  if (TakeHex(&text, kFlagsChars).empty()) return {};
  const bool has_more = !text.empty();
  if (has_more && (version == "00" || text.front() != '-')) return {};
  return {.trace_id = std::string(trace_id), .span_id = std::string(span_id)};
}

TraceContext TraceContextOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  const auto [begin, end] = metadata.equal_range("traceparent");
  if (begin == end || std::next(begin) != end) return {};
  return ParseTraceparent({begin->second.data(), begin->second.size()});
}

}  // namespace voxserve
