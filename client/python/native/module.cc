// The Python module voxserve_server._engine: LocalEngine and DevicePoints for voxserve.Engine (voxserve/engine.py),
// which makes the requests and reads the answers as voxserve.Client does. Messages pass as bytes. While a request runs,
// the module does not hold the GIL. An error is raised as StatusError, whose only argument is a serialized
// google.rpc.Status, as the server sends it.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/python/native/device_points.h"
#include "client/python/native/local_engine.h"
#include "engine/base/error_reason.h"
#include "engine/base/logging.h"
#include "engine/serving/engine.h"
#include "kernels/core/cuda_stream.h"
#include "server/codec/rpc_status.h"

namespace nb = nanobind;

namespace voxserve {
namespace {

// Carries an error out of a bound function.
struct StatusError : std::exception {
  explicit StatusError(const absl::Status& status) : bytes(ToRpcStatus(status).SerializeAsString()) {}
  std::string bytes;
};

template <typename T>
T ValueOrRaise(absl::StatusOr<T> value) {
  if (!value.ok()) throw StatusError(value.status());
  return *std::move(value);
}

// Runs the function without the GIL. No memory is an error as the server has it.
template <typename Run>
auto WithoutGil(const Run& run) -> decltype(run()) {
  nb::gil_scoped_release released;
  try {
    return run();
  } catch (const std::bad_alloc&) {
    return OutOfMemoryError();
  }
}

// The bytes of a Python object with the buffer protocol, contiguous; it stays unchanged meanwhile.
class Bytes {
 public:
  explicit Bytes(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~Bytes() { PyBuffer_Release(&view_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  std::string_view view() const { return {static_cast<const char*>(view_.buf), static_cast<size_t>(view_.len)}; }

 private:
  Py_buffer view_;
};

// Serializes the message. Protobuf has no larger ones than 2 GiB.
nb::bytes Serialized(const google::protobuf::Message& message) {
  const size_t size = message.ByteSizeLong();
  if (size > static_cast<size_t>(std::numeric_limits<int>::max())) {
    throw StatusError(WithReason(absl::ResourceExhaustedError(absl::StrCat("the answer takes ", size,
                                                                           " bytes, more than 2 GiB; ask for fewer "
                                                                           "outputs, or for float16")),
                                 error_reason::kResponseTooLarge));
  }
  const std::string bytes = message.SerializeAsString();
  return nb::bytes(bytes.data(), bytes.size());
}

absl::Duration DurationOf(double seconds) {
  return std::isfinite(seconds) ? absl::Seconds(seconds) : absl::InfiniteDuration();
}

// Returns true if Python has a signal to handle, such as Ctrl-C, whose exception is then set.
bool HasSignal() {
  nb::gil_scoped_acquire acquired;
  return PyErr_CheckSignals() != 0;
}

nb::bytes Infer(LocalEngine& engine, nb::handle head, nb::handle cloud, nb::handle points, double timeout) {
  const Bytes head_bytes(head);
  const Bytes cloud_bytes(cloud);
  const Bytes point_bytes(points);
  const LocalEngine::Request request = {.head = head_bytes.view(),
                                        .cloud = cloud_bytes.view(),
                                        .points = point_bytes.view(),
                                        .timeout = DurationOf(timeout)};
  absl::StatusOr<v1::InferResponse> response =
      WithoutGil([&]() -> absl::StatusOr<v1::InferResponse> { return engine.Infer(request, HasSignal); });
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return Serialized(ValueOrRaise(std::move(response)));
}

// A tensor on a GPU: voxserve.Engine has asked for its device, which may be CUDA's or CUDA's managed memory.
using DeviceTensor = nb::ndarray<nb::ro, nb::c_contig>;
using HostTensor = nb::ndarray<nb::numpy>;

// Copies a tensor on a GPU to a NumPy array of the same shape and type. nanobind raises a TypeError if its rows are not
// contiguous.
HostTensor CopyToHost(DevicePoints& devices, const DeviceTensor& tensor) {
  std::unique_ptr<char[]> host(new char[tensor.nbytes()]);
  const absl::Status status = WithoutGil([&] {
    return devices.Copy(tensor.device_id(), tensor.data(), static_cast<int64_t>(tensor.nbytes()), host.get());
  });
  if (!status.ok()) throw StatusError(status);
  char* const data = host.release();
  nb::capsule owner(data, [](void* memory) noexcept { delete[] static_cast<char*>(memory); });
  std::vector<size_t> shape;
  for (size_t axis = 0; axis < tensor.ndim(); ++axis) shape.push_back(tensor.shape(axis));
  return HostTensor(data, shape.size(), shape.data(), owner, nullptr, tensor.dtype());
}

std::unique_ptr<LocalEngine> MakeEngine(const std::string& repository, const std::string& devices, int threads,
                                        bool deterministic, const std::string& plan_dir) {
  Engine::Options options;
  options.model_repository = repository;
  options.devices = devices;
  options.num_threads = threads;
  options.deterministic = deterministic;
  options.plan_dir = plan_dir;
  options.engine_version = VOXSERVE_VERSION;
  // A request may take as long as its caller lets it, since no other client waits for the device.
  options.max_request_time = absl::InfiniteDuration();
  options.stuck_batch_time = absl::InfiniteDuration();
  return ValueOrRaise(WithoutGil([&] { return LocalEngine::Create(options); }));
}

}  // namespace

// NOLINTNEXTLINE(performance-unnecessary-value-param): nanobind's macro writes the parameter
NB_MODULE(_engine, module) {
  nb::set_leak_warnings(false);      // an engine that lives until the interpreter ends is no leak
  SetMinLogLevel(LogLevel::kError);  // warnings are for those who run a server
  module.attr("version") = VOXSERVE_VERSION;
  module.attr("has_cuda") = kernels::kHasCuda;

  nb::object error = nb::steal(PyErr_NewException("voxserve_server._engine.StatusError", nullptr, nullptr));
  module.attr("StatusError") = error;
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const StatusError& status) {
          const nb::bytes bytes(status.bytes.data(), status.bytes.size());
          PyErr_SetObject(static_cast<PyObject*>(type), bytes.ptr());
        }
      },
      error.release().ptr());

  nb::class_<LocalEngine>(module, "LocalEngine")
      .def(nb::new_(&MakeEngine), nb::arg("repository"), nb::arg("devices"), nb::arg("threads"),
           nb::arg("deterministic"), nb::arg("plan_dir"))
      .def("infer", &Infer, nb::arg("head"), nb::arg("cloud"), nb::arg("points"), nb::arg("timeout"))
      .def("list_models", [](const LocalEngine& engine) { return Serialized(ValueOrRaise(engine.ListModels())); })
      .def(
          "get_model",
          [](const LocalEngine& engine, const std::string& name, int64_t version) {
            return Serialized(ValueOrRaise(engine.GetModel(name, version)));
          },
          nb::arg("name"), nb::arg("version"))
      .def_prop_ro("devices", [](const LocalEngine& engine) { return ValueOrRaise(engine.devices()); })
      .def("close", &LocalEngine::Close, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<DevicePoints>(module, "DevicePoints")
      .def(nb::init<>())
      .def("stream", [](DevicePoints& devices,
                        int device) { return ValueOrRaise(WithoutGil([&] { return devices.stream(device); })); })
      .def("copy_to_host", &CopyToHost, nb::arg("tensor"));
}

}  // namespace voxserve
