#include "kernels/core/cublas_cuda.h"

#include <dlfcn.h>

#include <string>

namespace voxserve::kernels::cuda {
namespace {

#define VOXSERVE_QUOTED_VALUE(value) VOXSERVE_QUOTED(value)
#define VOXSERVE_QUOTED(text) #text
constexpr const char* kCublas = "libcublas.so." VOXSERVE_QUOTED_VALUE(CUBLAS_VER_MAJOR);
constexpr const char* kCublasLt = "libcublasLt.so." VOXSERVE_QUOTED_VALUE(CUBLAS_VER_MAJOR);

// The libraries stay open: code of theirs may run until the process ends.
struct Loaded {
  Loaded() {
    // cuBLAS needs cuBLASLt, which the loader would look for without the program's RUNPATH.
    void* const cublaslt = Open(kCublasLt);
    void* const cublas = Open(kCublas);
    if (!error.empty()) return;
#define VOXSERVE_FIND_IN_CUBLAS(name) Find(cublas, #name, functions.name);
#define VOXSERVE_FIND_IN_CUBLASLT(name) Find(cublaslt, #name, functions.name);
    VOXSERVE_CUBLAS_FUNCTIONS(VOXSERVE_FIND_IN_CUBLAS)
    VOXSERVE_CUBLASLT_FUNCTIONS(VOXSERVE_FIND_IN_CUBLASLT)
  }

  void* Open(const char* library) {
    void* const handle = error.empty() ? dlopen(library, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (handle == nullptr && error.empty()) error = dlerror();
    return handle;
  }

  template <typename Function>
  void Find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr && error.empty()) error = dlerror();
  }

  CublasFunctions functions;
  std::string error;  // of the first step that failed
};

const Loaded& LoadOnce() {
  static const Loaded& loaded = *new Loaded;  // outlives every thread
  return loaded;
}

}  // namespace

const CublasFunctions& Cublas() { return LoadOnce().functions; }

const char* LoadCublas() {
  const Loaded& loaded = LoadOnce();
  return loaded.error.empty() ? nullptr : loaded.error.c_str();
}

}  // namespace voxserve::kernels::cuda
