// The Python module torch_npu._C.
#include "hccl.h"
#include "soft.h"

#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
  using namespace softnpu;
  settings();  // a setting that can't be read fails the import
  register_hooks();
  register_operators();

  m.attr("present_devices") = settings().devices;  // before ASCEND_RT_VISIBLE_DEVICES
  m.def("device_count", [] { return int(device_count()); });
  m.def("current_device", [] { return int(current_device()); });
  m.def("set_device", [](int index) { set_current_device(index); });
  m.def("check_device", [](int index) { check_device(index); });
  m.def("in_bad_fork", &in_bad_fork);
  m.def("used", &used);
  m.def("current_stream", [](int index) { return current_stream(index); });
  m.def("set_stream", [](int index, int64_t id) { set_current_stream(index, id); });
  m.def("elapsed_milliseconds", [](size_t start, size_t end) {
    return elapsed_milliseconds(reinterpret_cast<void*>(start), reinterpret_cast<void*>(end));
  });
  m.def("default_generator", [](int index) {
    return py::reinterpret_borrow<py::object>(THPGenerator_initDefaultGenerator(default_generator(index)));
  });
  m.def("memory_info", [](int index) { return allocator()->getMemoryInfo(index); });
  m.def("memory_fraction", [](int index) { return memory_fraction(index); });
  m.def("set_memory_fraction", [](int index, double fraction) { set_memory_fraction(index, fraction); });
  m.def("hccl_over", &hccl_over);
  m.def("drain_autograd", &drain_autograd, py::call_guard<py::gil_scoped_release>());
  // The name and the argument (a storage's address, `_cdata`) are torch_npu's.
  m.def("_storage_Use_Count", [](size_t address) {
    return c10::raw::intrusive_ptr::use_count(reinterpret_cast<c10::StorageImpl*>(address));
  });
}
