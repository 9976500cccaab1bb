#include "server/calls/infer_call.h"

namespace voxserve {

void InferCall::OnRequest(const grpc::ByteBuffer& bytes) {
  request_->Start({.peer = source(), .caller = caller(), .deadline = deadline(), .trace = trace()}, bytes,
                  [self = std::static_pointer_cast<InferCall>(shared_from_this())](absl::StatusOr<InferAnswer> answer) {
                    if (answer.ok()) {
                      self->End(absl::OkStatus(), std::move(answer->message), std::move(answer->held));
                    } else {
                      self->End(answer.status());
                    }
                  });
}

}  // namespace voxserve
