// Device memory: host memory that is counted against a limit. Nothing is cached; `reserved` is what a caching allocator
// would have kept since the last empty_cache.
#include "soft.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/alloc_cpu.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace softnpu {
namespace {

using c10::CachingAllocator::format_size;
using c10::CachingDeviceAllocator::DeviceStats;

struct Block {
  size_t bytes;
  c10::DeviceIndex device;
  void* data;          // ours, or
  c10::Storage host;   // taken over from a CPU kernel's result
};

class NpuAllocator final : public c10::DeviceAllocator {
 public:
  std::mutex mutex;
  NpuAllocator() : stats_(settings().devices), fraction_(settings().devices, 1.0) {}

  c10::DataPtr allocate(size_t bytes) override {
    const auto device = current_device();
    check_device(device);
    if (bytes == 0) return {nullptr, c10::Device(kNpu, device)};
    take(device, bytes);
    void* data = nullptr;
    try {
      data = c10::alloc_cpu(bytes);
    } catch (const c10::Error&) {  // the host has less than the device claims
      give(device, bytes);
      out_of_memory(device, bytes);
    }
    return {data, new Block{bytes, device, data, {}}, &free, c10::Device(kNpu, device)};
  }

  c10::DataPtr adopt(const c10::Storage& host, c10::DeviceIndex device) {
    check_device(device);
    if (host.nbytes() == 0) return {nullptr, c10::Device(kNpu, device)};
    take(device, host.nbytes());
    void* data = host.unsafeGetStorageImpl()->mutable_data();
    return {data, new Block{host.nbytes(), device, nullptr, host}, &free, c10::Device(kNpu, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }
  bool initialized() override { return true; }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}

  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard lock(mutex);
    for (auto& each : stats_) each.reserved_bytes[0].decrease(each.reserved_bytes[0].current - each.allocated_bytes[0].current);
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    check_device(device);
    std::lock_guard lock(mutex);
    return stats_[device];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each_stat(device, [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const size_t reserved = getDeviceStats(device).reserved_bytes[0].current;
    return {settings().memory - std::min(reserved, settings().memory), settings().memory};
  }
  double& fraction(c10::DeviceIndex device) {
    check_device(device);
    return fraction_[device];
  }

 private:
  static void free(void* context) {
    std::unique_ptr<Block> block(static_cast<Block*>(context));
    if (block->data) c10::free_cpu(block->data);
    static_cast<NpuAllocator*>(allocator())->give(block->device, block->bytes);
  }

  void take(c10::DeviceIndex device, size_t bytes) {
    std::unique_lock lock(mutex);
    auto& stats = stats_[device];
    if (stats.allocated_bytes[0].current + bytes > settings().memory * fraction_[device]) {
      lock.unlock();
      out_of_memory(device, bytes);
    }
    for (auto* counts : {&stats.allocation, &stats.active}) (*counts)[0].increase(1);
    for (auto* sizes : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes}) (*sizes)[0].increase(bytes);
    const auto missing = stats.allocated_bytes[0].current - stats.reserved_bytes[0].current;
    if (missing > 0) stats.reserved_bytes[0].increase(missing);
  }

  void give(c10::DeviceIndex device, size_t bytes) {
    std::lock_guard lock(mutex);
    auto& stats = stats_[device];
    for (auto* counts : {&stats.allocation, &stats.active}) (*counts)[0].decrease(1);
    for (auto* sizes : {&stats.allocated_bytes, &stats.active_bytes, &stats.requested_bytes}) (*sizes)[0].decrease(bytes);
  }

  [[noreturn]] void out_of_memory(c10::DeviceIndex device, size_t bytes) {
    std::unique_lock lock(mutex);
    auto& stats = stats_[device];
    stats.num_ooms += 1;
    const size_t allocated = stats.allocated_bytes[0].current;
    lock.unlock();
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "NPU out of memory. Tried to allocate ", format_size(bytes), " (NPU ", int(device), "; ",
        format_size(settings().memory), " total capacity; ", format_size(allocated), " already allocated; limited to ",
        fraction_[device] * 100, " % of the capacity)");
    __builtin_unreachable();
  }

  template <typename F>
  void each_stat(c10::DeviceIndex device, F f) {
    check_device(device);
    std::lock_guard lock(mutex);
    auto& s = stats_[device];
    for (auto* stat : {&s.allocation, &s.active, &s.allocated_bytes, &s.active_bytes, &s.requested_bytes, &s.reserved_bytes})
      f((*stat)[0]);
  }

  std::vector<DeviceStats> stats_;
  std::vector<double> fraction_;
};

NpuAllocator& npu_allocator() {
  static auto* one = new NpuAllocator();  // tensors outlive the static objects of this library
  return *one;
}

/// Host memory whose addresses are remembered, so that is_pinned can tell it.
class PinnedAllocator final : public c10::Allocator {
 public:
  std::mutex mutex;
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    void* data = c10::alloc_cpu(bytes);
    std::lock_guard lock(mutex);
    sizes_[data] = bytes;
    return {data, data, &free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* target, const void* source, size_t bytes) const override { std::memcpy(target, source, bytes); }

  bool holds(const void* data) {
    std::lock_guard lock(mutex);
    auto after = sizes_.upper_bound(data);
    if (after == sizes_.begin()) return false;
    const auto& [start, bytes] = *--after;
    return static_cast<const char*>(data) < static_cast<const char*>(start) + bytes;
  }

 private:
  static void free(void* data);
  std::map<const void*, size_t> sizes_;
};

PinnedAllocator& pinned() {
  static auto* one = new PinnedAllocator();
  return *one;
}

void PinnedAllocator::free(void* data) {
  {
    std::lock_guard lock(pinned().mutex);
    pinned().sizes_.erase(data);
  }
  c10::free_cpu(data);
}

}  // namespace

c10::DeviceAllocator* allocator() { return &npu_allocator(); }
c10::Allocator* pinned_allocator() { return &pinned(); }
bool is_pinned(const void* data) { return data && pinned().holds(data); }
c10::DataPtr adopt(const c10::Storage& host, c10::DeviceIndex index) { return npu_allocator().adopt(host, index); }
double memory_fraction(c10::DeviceIndex index) { return npu_allocator().fraction(index); }
void set_memory_fraction(c10::DeviceIndex index, double fraction) { npu_allocator().fraction(index) = fraction; }

void lock_allocators() {
  npu_allocator().mutex.lock();
  pinned().mutex.lock();
}
void unlock_allocators() {
  pinned().mutex.unlock();
  npu_allocator().mutex.unlock();
}

}  // namespace softnpu
