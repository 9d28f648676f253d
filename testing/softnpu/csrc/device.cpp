// What torch asks of a device: how many there are, which is current, streams, events, generators, hooks.
#include "soft.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>

namespace softnpu {
namespace {

constexpr int kMostDevices = 64;

size_t whole_number(const char* name, size_t otherwise, size_t most) {
  const char* text = std::getenv(name);
  if (!text) return otherwise;
  char* end = nullptr;
  errno = 0;
  const auto number = std::strtoull(text, &end, 10);
  TORCH_CHECK(
      *text >= '0' && *text <= '9' && *end == '\0' && errno == 0 && number <= most, name, "=", text,
      ": expected a whole number from 0 to ", most);
  return number;
}

/// How many of `present` devices ASCEND_RT_VISIBLE_DEVICES leaves: the list ends at the first entry that is not a
/// number or names no device, and a list out of order leaves none.
int visible(int present) {
  const char* list = std::getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (!list) return present;
  int count = 0;
  for (long previous = -1; *list >= '0' && *list <= '9'; ++count) {
    char* end = nullptr;
    const long index = std::strtol(list, &end, 10);
    if (index <= previous) return 0;
    if (index >= present) break;
    previous = index;
    list = *end == ',' ? end + 1 : end;
    if (list == end) {
      ++count;
      break;
    }
  }
  return count;
}

std::atomic<int> fixed_count{-1};  // set by the first use: later changes of the environment have no effect
std::atomic<bool> forked_after_use{false};
thread_local c10::DeviceIndex current = 0;
thread_local c10::StreamId streams[kMostDevices] = {};
std::atomic<c10::StreamId> last_stream{0};

using Clock = std::chrono::steady_clock;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNpu; }
  c10::Device getDevice() const override { return {kNpu, current}; }
  void setDevice(c10::Device device) const override { set_current_device(device.index()); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto previous = getDevice();
    if (device.index() != current) setDevice(device);
    return previous;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }

  c10::Stream stream(c10::Device device, c10::StreamId id) const {
    const auto index = device.has_index() ? device.index() : current;
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kNpu, index), id);
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream(device, streams[device.has_index() ? device.index() : current]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(device, ++last_stream); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto previous = getStream(next.device());
    set_current_stream(next.device_index(), next.id());
    return previous;
  }
  // Work is done when its call returns, so every stream and every recorded event has always completed.
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(c10::DeviceIndex index) const override { check_device(index); }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new Clock::time_point();
    *static_cast<Clock::time_point*>(*event) = Clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override { return elapsed_milliseconds(start, end); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Clock::time_point*>(event);
  }
};

/// A device's generator is a host generator under another name: the kernels that draw from it are the host's.
class NpuGenerator final : public c10::GeneratorImpl {
 public:
  NpuGenerator(c10::DeviceIndex index, at::Generator host)
      : GeneratorImpl(c10::Device(kNpu, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { host.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return host.unsafeGetGeneratorImpl()->get_state(); }
  at::Generator host;

 private:
  NpuGenerator* clone_impl() const override { return new NpuGenerator(device_.index(), host.clone()); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return used(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? -1 : Guard().exchangeDevice({kNpu, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<NpuGenerator>(index < 0 ? current : index, at::detail::createCPUGenerator());
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  at::Device getDeviceFromPtr(void*) const override { return {kNpu, current}; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    auto data = allocator()->allocate(bytes);
    if (bytes && storage.nbytes()) std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(bytes);
  }
};

}  // namespace

const Settings& settings() {
  static const Settings read{
      int(whole_number("SOFTNPU_DEVICES", 1, kMostDevices)),
      whole_number("SOFTNPU_MEMORY", size_t(64) << 30, size_t(1) << 50),
      whole_number("SOFTNPU_STRICT", 1, 1) == 1,
      whole_number("SOFTNPU_OWN_RNG", 0, 1) == 1,
  };
  return read;
}

c10::DeviceIndex device_count() noexcept {
  const int fixed = fixed_count;
  return fixed >= 0 ? fixed : visible(settings().devices);
}

bool used() { return fixed_count >= 0; }
bool in_bad_fork() { return forked_after_use; }

void check_device(c10::DeviceIndex index) {
  TORCH_CHECK(
      !forked_after_use, "Cannot re-initialize NPU in forked subprocess: the parent has used the device. "
      "Start processes that use an NPU with the 'spawn' method");
  if (!used()) fixed_count = device_count();
  TORCH_CHECK(
      index >= 0 && index < device_count(), "Invalid device ID: npu:", int(index), " was asked for, and ",
      int(device_count()), " NPU(s) are visible");
}

c10::DeviceIndex current_device() { return current; }
void set_current_device(c10::DeviceIndex index) {
  check_device(index);
  current = index;
}

c10::StreamId current_stream(c10::DeviceIndex index) { return check_device(index), streams[index]; }
void set_current_stream(c10::DeviceIndex index, c10::StreamId id) {
  check_device(index);
  streams[index] = id;
}

double elapsed_milliseconds(void* start, void* end) {
  TORCH_CHECK(start && end, "Both events must be recorded before their times can be compared");
  const auto passed = *static_cast<Clock::time_point*>(end) - *static_cast<Clock::time_point*>(start);
  return std::chrono::duration<double, std::milli>(passed).count();
}

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::deque<at::Generator>();
    for (int i = 0; i < settings().devices; ++i) {
      const auto host = settings().own_rng ? at::detail::createCPUGenerator() : at::detail::getDefaultCPUGenerator();
      made->push_back(at::make_generator<NpuGenerator>(i, host));
    }
    return made;
  }();
  if (index < 0) index = current;
  TORCH_CHECK(index < int(all->size()), "Invalid device ID: npu:", int(index));
  return (*all)[index];
}

at::Generator host_generator(const at::Generator& generator) {
  return static_cast<NpuGenerator*>(generator.unsafeGetGeneratorImpl())->host;
}

void register_hooks() {
  c10::impl::registerDeviceGuard(kNpu, new Guard());
  c10::SetAllocator(kNpu, allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  pthread_atfork(lock_allocators, unlock_allocators, [] {
    unlock_allocators();
    forked_after_use = used();
  });
}

}  // namespace softnpu
