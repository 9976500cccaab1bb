#pragma once

// TraceContext is what a call's client says of its trace: the metadata `traceparent` of W3C Trace Context, level 1
// (https://www.w3.org/TR/trace-context/). The log's lines about the call carry it, so that an operator finds a trace's
// calls, and a call's trace.
//
// The server is no part of the trace: it makes no spans, and passes nothing on.

#include <grpcpp/grpcpp.h>

#include <map>
#include <string>
#include <string_view>

#include "engine/base/logging.h"

namespace voxserve {

struct TraceContext {
  std::string trace_id;  // 32 lower-case hexadecimal digits; "": none
  std::string span_id;   // 16, the caller's span ("parent-id"); "" together with trace_id
};

// Returns no context for a text that the standard calls invalid. For a later version than 00 it reads the fields of
// version 00, as the standard asks.
TraceContext ParseTraceparent(std::string_view text);

// Returns the one in a call's metadata; nothing if there are several, since a proxy may have looked at another one.
TraceContext TraceContextOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// Returns the fields of a log line, or none if the call has no trace.
inline LogField TraceIdField(const TraceContext& trace) { return LogField::IfAny("trace_id", trace.trace_id); }
inline LogField SpanIdField(const TraceContext& trace) { return LogField::IfAny("span_id", trace.span_id); }

}  // namespace voxserve
