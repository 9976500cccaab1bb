#include "client/cpp/cli/printable.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/base/utf8.h"

namespace voxserve::client {
namespace {

bool IsPrintable(uint32_t code_point) {
  const auto is_in = [code_point](uint32_t first, uint32_t last) { return code_point >= first && code_point <= last; };
  const bool is_control = code_point < 0x20 || is_in(0x7F, 0x9F);
  // Line ends of Unicode, and characters that change the direction of the text behind them.
  const bool reorders = is_in(0x200E, 0x200F) || is_in(0x2028, 0x202E) || is_in(0x2066, 0x2069);
  return !is_control && !reorders;
}

}  // namespace

std::string Printable(absl::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const std::optional<Utf8Character> character = FirstUtf8Character(text);
    if (!character.has_value()) {
      absl::StrAppendFormat(&printable, "\\x%02x", static_cast<uint8_t>(text[0]));
    } else if (IsPrintable(character->code_point)) {
      absl::StrAppend(&printable, text.substr(0, character->size));
    } else if (character->code_point == '\n') {
      printable += "\\n";
    } else {
      absl::StrAppendFormat(&printable, "\\u%04x", character->code_point);
    }
    text.remove_prefix(character.has_value() ? character->size : 1);
  }
  return printable;
}

void MakePrintable(google::protobuf::Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    const bool is_text = field->type() == google::protobuf::FieldDescriptor::TYPE_STRING;
    const bool is_message = field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE;
    if (!is_text && !is_message) continue;
    if (!field->is_repeated()) {
      if (is_message) {
        MakePrintable(reflection.MutableMessage(message, field));
      } else {
        reflection.SetString(message, field, Printable(reflection.GetString(*message, field)));
      }
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(*message, field); ++i) {
      if (is_message) {
        MakePrintable(reflection.MutableRepeatedMessage(message, field, i));
      } else {
        reflection.SetRepeatedString(message, field, i, Printable(reflection.GetRepeatedString(*message, field, i)));
      }
    }
  }
}

void MakePrintable(Answer* answer) {
  for (std::string* text : {&answer->model, &answer->device, &answer->request_id}) *text = Printable(*text);
  for (v1::FeatureWarning& warning : answer->warnings) MakePrintable(&warning);
  for (Stage& stage : answer->stages) stage.name = Printable(stage.name);
  for (Tensor& tensor : answer->tensors) tensor.name = Printable(tensor.name);
}

}  // namespace voxserve::client
