#pragma once

// TraceContext identifies the distributed trace that a call belongs to. The client sends it in the metadata
// `traceparent` of W3C Trace Context, level 1 (https://www.w3.org/TR/trace-context/). Log lines about a call have these
// ids, so that an operator finds the calls of a trace, and the trace of a call.
//
// The server takes no part in the trace: it makes no spans, and sends the context to no other service.
//
// Threads: pure functions, any thread.

#include <grpcpp/grpcpp.h>

#include <map>
#include <string>
#include <string_view>

#include "engine/base/logging.h"

namespace voxserve {

struct TraceContext {
  std::string trace_id;  // 32 lower-case hexadecimal digits; "": the call has no trace
  std::string span_id;   // the caller's span ("parent-id"), 16 such digits; "" if and only if trace_id is ""
};

// Parses the value of `traceparent`. Returns an empty context if the standard calls the text invalid. Reads the fields
// of version 00 from a text of a later version, as the standard asks.
TraceContext ParseTraceparent(std::string_view text);

// Returns the context in a call's metadata. Returns an empty context if there are several values of `traceparent`,
// since a proxy may have used a different one of them.
TraceContext TraceContextOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// Return the field for a log line. The field is left out if the call has no trace.
inline LogField TraceIdField(const TraceContext& trace) { return LogField::IfAny("trace_id", trace.trace_id); }
inline LogField SpanIdField(const TraceContext& trace) { return LogField::IfAny("span_id", trace.span_id); }

}  // namespace voxserve
