// Shared by the sources of the software NPU: settings, the device's state, and tensors seen from the host.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

namespace softnpu {

constexpr auto kNpu = c10::DeviceType::PrivateUse1;

/// What the environment asks for, read once when the module loads. Throws c10::Error on a value that can't be read.
struct Settings {
  int devices;       // SOFTNPU_DEVICES
  size_t memory;     // SOFTNPU_MEMORY, bytes of each device
  bool strict;       // SOFTNPU_STRICT, refuse host tensors beside npu tensors
  bool own_rng;      // SOFTNPU_OWN_RNG, a generator for each device instead of the host's
};
const Settings& settings();

// device.cpp
c10::DeviceIndex device_count() noexcept;
c10::DeviceIndex current_device();
void set_current_device(c10::DeviceIndex index);
/// Throws when there is no such device, or when this process was forked from one that used the devices.
void check_device(c10::DeviceIndex index);
bool in_bad_fork();
bool used();
const at::Generator& default_generator(c10::DeviceIndex index);
/// The host generator that does a device generator's work.
at::Generator host_generator(const at::Generator& generator);
double elapsed_milliseconds(void* start, void* end);
c10::StreamId current_stream(c10::DeviceIndex index);
void set_current_stream(c10::DeviceIndex index, c10::StreamId id);
void register_hooks();

// memory.cpp
c10::DeviceAllocator* allocator();
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);
void set_memory_fraction(c10::DeviceIndex index, double fraction);
double memory_fraction(c10::DeviceIndex index);
/// Make a host storage's bytes those of an npu storage, without a copy. Throws OutOfMemoryError over the limit.
c10::DataPtr adopt(const c10::Storage& host, c10::DeviceIndex index);
/// A fork must not happen while another thread holds the allocators' locks: the child frees tensors too.
void lock_allocators();
void unlock_allocators();

// fallback.cpp
/// A CPU tensor over the same bytes, which it keeps alive. A host tensor is returned as it is.
at::Tensor host_view(const at::Tensor& tensor);
void register_operators();
/// Return when autograd's threads for the devices have let go of all that Python has given them.
void drain_autograd();

}  // namespace softnpu
