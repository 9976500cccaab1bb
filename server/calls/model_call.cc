#include "server/calls/model_call.h"

namespace voxserve {

void StartLoad(Engine* engine, const AskedModel& model, VersionsDone done) {
  engine->Load({.model = model.name, .version = model.version, .done = std::move(done)});
}

void StartUnload(Engine* engine, const AskedModel& model, VersionsDone done) {
  engine->Unload({.model = model.name, .version = model.version, .done = std::move(done)});
}

}  // namespace voxserve
