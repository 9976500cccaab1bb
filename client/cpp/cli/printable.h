#pragma once

// These functions make text of servers and of files fit for a terminal, where control characters could move the cursor,
// hide text, forge lines of a command or change the terminal's state. Commands call them on all text that is not their
// own.

#include <string>

#include "absl/strings/string_view.h"
#include "client/cpp/api/answer.h"

namespace google::protobuf {
class Message;
}

namespace voxserve::client {

// Returns the text with escapes in place of control characters (line ends too), characters that change the direction
// of text, and bytes that are no UTF-8: "\n", "\u001b", "\xff".
std::string Printable(absl::string_view text);

// Replaces every text (string field) of the message, or of the answer, by its Printable. Bytes stay as they are.
void MakePrintable(google::protobuf::Message* message);
void MakePrintable(Answer* answer);

}  // namespace voxserve::client
