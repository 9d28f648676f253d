// Operators. One boxed kernel serves nearly all: each npu operand becomes a CPU tensor over the same bytes, the CPU kernel
// runs, and its results become npu tensors, again without a copy.
#include "soft.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/ScopeExit.h>
#include <torch/library.h>

#include <set>
#include <thread>

namespace softnpu {
namespace {

using at::Tensor;
using c10::Storage;
using Stack = torch::jit::Stack;

/// A tensor of these bytes, laid out like another; as a view of one that has `shown` keys, where they are given.
Tensor over(Storage storage, c10::DispatchKey key, const Tensor& like, std::optional<c10::DispatchKeySet> shown = {}) {
  auto made = shown
      ? at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), *shown, like.dtype())
      : at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  if (like.is_conj()) impl->_set_conj(true);
  if (like.is_neg()) impl->_set_neg(true);
  return made;
}

/// The same bytes as a host storage, which keeps the npu storage alive and can be resized as any other.
Storage host_storage(const Storage& storage) {
  void* data = storage.unsafeGetStorageImpl()->mutable_data();
  c10::DataPtr lent(data, new Storage(storage), [](void* kept) { delete static_cast<Storage*>(kept); }, c10::kCPU);
  return {Storage::use_byte_size_t(), storage.nbytes(), std::move(lent), c10::GetAllocator(c10::kCPU), /*resizable=*/true};
}

/// One call of an operator on the host in the place of the device.
class HostCall {
 public:
  explicit HostCall(const c10::OperatorHandle& op) : op_(op) {}

  void run(Stack* stack) {
    const auto& arguments = op_.schema().arguments();
    const size_t base = stack->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) lend((*stack)[base + i], arguments[i]);
    settle_device();
    // The generators are filled in last: which device draws is known only now.
    bool draws = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].name() != "generator") continue;
      draws = true;
      if (settings().own_rng && (*stack)[base + i].isNone())
        (*stack)[base + i] = c10::IValue(host_generator(default_generator(device_)));
    }
    if (settings().own_rng && !draws && op_.hasTag(at::Tag::nondeterministic_seeded))
      run_with_own_numbers(stack);
    else
      op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    for (auto& operand : operands_)
      if (operand.written) carry_back(operand);
    for (size_t i = stack->size() - op_.schema().returns().size(); i < stack->size(); ++i) give_back((*stack)[i]);
  }

 private:
  struct Operand {
    Tensor npu, host;
    bool written;
  };
  struct Lent {
    Storage npu, host;
  };

  void lend(c10::IValue& value, const c10::Argument& argument) {
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    if (value.isTensor()) {
      value = lend(value.toTensor(), written, false, argument);
    } else if (value.isTensorList()) {
      c10::List<Tensor> lent;
      const auto given = value.toTensorList();
      lent.reserve(given.size());
      for (const Tensor& each : given) lent.push_back(lend(each, written, false, argument));
      value = std::move(lent);
    } else if (value.isOptionalTensorList()) {  // only indexing takes these, and it accepts indices on the host
      c10::List<std::optional<Tensor>> lent;
      for (const std::optional<Tensor>& each : value.toOptionalTensorList())
        lent.push_back(each ? std::optional(lend(*each, written, true, argument)) : std::nullopt);
      value = std::move(lent);
    } else if (value.isDevice() && value.toDevice().type() == kNpu) {
      meet(value.toDevice(), argument);
      value = c10::Device(c10::kCPU);
    } else if (value.isStorage() && value.toStorage().device_type() == kNpu) {
      meet(value.toStorage().device(), argument);
      value = lent(value.toStorage());
    } else if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      const bool ours = generator.device().type() == kNpu;
      TORCH_CHECK(
          ours || !settings().strict, "Expected a 'npu' device type for generator but found '", generator.device(), "' (in ",
          op_.operator_name(), ")");
      if (ours) value = host_generator(generator);
      has_npu_generator_ |= ours;
    }
  }

  Tensor lend(const Tensor& tensor, bool written, bool index, const c10::Argument& argument) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() != kNpu) {
      // As on a GPU: a number may stay on the host, unless it is to be written to.
      if (tensor.device().is_cpu() && (written || (tensor.dim() > 0 && !index))) outsider_ = &argument;
      return tensor;
    }
    meet(tensor.device(), argument);
    has_npu_ = true;
    for (auto& operand : operands_)
      if (operand.npu.is_same(tensor)) {
        operand.written |= written;
        return operand.host;
      }
    TORCH_CHECK_NOT_IMPLEMENTED(
        tensor.layout() == c10::kStrided && tensor.has_storage(), op_.operator_name(), ": the software NPU has dense tensors only");
    operands_.push_back({tensor, over(lent(tensor.storage()), c10::DispatchKey::CPU, tensor), written});
    return operands_.back().host;
  }

  Storage lent(const Storage& storage) {
    for (auto& each : storages_)
      if (each.npu.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return each.host;
    storages_.push_back({storage, host_storage(storage)});
    return storages_.back().host;
  }

  void meet(c10::Device device, const c10::Argument& argument) {
    const auto index = device.has_index() ? device.index() : current_device();
    if (device_ < 0) device_ = index;
    if (index != device_ && settings().strict) refuse(c10::Device(kNpu, index), argument);
  }

  void settle_device() {
    TORCH_CHECK(
        !has_npu_generator_ || device_ >= 0 || !settings().strict,
        "Expected a 'cpu' device type for generator but found 'npu' (in ", op_.operator_name(), ")");
    if (device_ < 0) device_ = current_device();
    check_device(device_);
    if (has_npu_ && outsider_ && settings().strict) refuse(c10::Device(c10::kCPU), *outsider_);
  }

  [[noreturn]] void refuse(c10::Device other, const c10::Argument& argument) {
    TORCH_CHECK(
        false, "Expected all tensors to be on the same device, but found at least two devices, npu:", int(device_), " and ", other,
        "! (argument ", argument.name(), " of ", op_.operator_name(), ")");
    __builtin_unreachable();
  }

  /// For kernels that take no generator: lend the device's numbers to the host's default generator.
  void run_with_own_numbers(Stack* stack) {
    auto mine = host_generator(default_generator(device_));
    auto theirs = at::globalContext().defaultGenerator(c10::kCPU);
    const auto give_back = c10::make_scope_exit([&, kept = theirs.get_state()] { theirs.set_state(kept); });
    theirs.set_state(mine.get_state());
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    mine.set_state(theirs.get_state());
  }

  /// A written operand may have been resized, or set to another storage.
  void carry_back(Operand& operand) {
    auto* host = operand.host.unsafeGetTensorImpl();
    auto* npu = operand.npu.unsafeGetTensorImpl();
    const Storage target = ours(host->storage());
    if (!npu->storage().is_alias_of(target)) npu->set_storage_keep_dtype(target);
    if (target.data() != host->storage().data() || target.nbytes() != host->storage().nbytes()) {
      auto taken = adopt(host->storage(), device_);
      target.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(taken));
      target.set_nbytes(host->storage().nbytes());
    }
    if (npu->sizes() != host->sizes() || npu->strides() != host->strides() || npu->storage_offset() != host->storage_offset())
      npu->set_sizes_and_strides(host->sizes(), host->strides(), host->storage_offset());
  }

  /// The npu storage that was lent as `host`, or a new one that takes its bytes over.
  Storage ours(const Storage& host) {
    for (auto& each : storages_)
      if (each.host.unsafeGetStorageImpl() == host.unsafeGetStorageImpl()) return each.npu;
    Storage taken(Storage::use_byte_size_t(), host.nbytes(), adopt(host, device_), allocator(), /*resizable=*/true);
    storages_.push_back({taken, host});
    return taken;
  }

  void give_back(c10::IValue& value) {
    if (value.isTensor()) {
      value = ours(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> all;
      for (const Tensor& each : value.toTensorList()) all.push_back(ours(each));
      value = std::move(all);
    }
  }

  Tensor ours(const Tensor& host) {
    if (!host.defined() || !host.device().is_cpu()) return host;
    for (auto& operand : operands_)
      if (operand.host.is_same(host)) return operand.npu;
    TORCH_CHECK_NOT_IMPLEMENTED(
        host.layout() == c10::kStrided && host.has_storage() && !host.is_quantized(), op_.operator_name(),
        ": the software NPU has dense tensors only");
    for (auto& operand : operands_)  // a view: with the keys of what it shows, an inference tensor or not as that is
      if (operand.host.storage().unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl())
        return over(ours(host.storage()), c10::DispatchKey::PrivateUse1, host, operand.npu.key_set());
    return over(ours(host.storage()), c10::DispatchKey::PrivateUse1, host);
  }

  const c10::OperatorHandle& op_;
  c10::SmallVector<Operand, 6> operands_;
  c10::SmallVector<Lent, 6> storages_;
  c10::DeviceIndex device_ = -1;
  bool has_npu_ = false;
  bool has_npu_generator_ = false;
  const c10::Argument* outsider_ = nullptr;  // an argument on the host that has no business beside npu tensors
};

void on_host(const c10::OperatorHandle& op, Stack* stack) { HostCall(op).run(stack); }

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Where = std::optional<c10::Device>;
using Pin = std::optional<bool>;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// By hand, so that the limit is felt before the memory is taken.
Tensor empty(at::IntArrayRef size, Dtype dtype, Layout, Where device, Pin, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kNpu)));
  return at::detail::empty_generic(size, allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, Dtype dtype, Layout, Where device, Pin) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kNpu)));
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  host_view(target).copy_(host_view(source));
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, false);
}

void record_stream(Tensor&, c10::Stream) {}

/// Host and device tensors are both plain dense ones: `parameter.data = moved` keeps the parameter's identity.
bool has_compatible_type(const Tensor& self, const Tensor& from) {
  const auto dense = [](const Tensor& tensor) {
    return tensor.key_set().has_any(c10::DispatchKeySet({c10::BackendComponent::CPUBit, c10::BackendComponent::PrivateUse1Bit})) &&
        tensor.key_set().has(c10::DispatchKey::Dense);
  };
  return self.key_set() == from.key_set() || (dense(self) && dense(from));
}

/// The kernel that the CPU would choose; torch then calls it, and it runs on the host like any other.
int64_t sdp_choice(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout, bool causal,
    std::optional<double> scale, bool gqa) {
  const auto view = [](const Tensor& tensor) {
    auto host = host_view(tensor);
    if (tensor.requires_grad() && !host.is_inference()) host.set_requires_grad(true);
    return host;
  };
  const auto host_mask = mask && mask->defined() ? std::optional(view(*mask)) : std::nullopt;
  return at::_fused_sdp_choice(view(query), view(key), view(value), host_mask, dropout, causal, scale, gqa);
}

}  // namespace

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kNpu) return tensor;
  return over(host_storage(tensor.storage()), c10::DispatchKey::CPU, tensor);
}

void drain_autograd() {
  // A backward pass returns before its thread has freed the pass's state, which may hold Python objects. A thread works on
  // one pass after the other, so when it has done another one, which comes from a thread that Python doesn't know, the
  // earlier ones are freed.
  std::thread([] {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      const auto none = at::empty({0}, c10::Device(kNpu, index));  // takes no memory
      none.detach().requires_grad_().view({0}).backward(none);
    }
  }).join();
}

void register_operators() {
  static torch::Library all(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());

  static torch::Library aten(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  aten.impl("empty.memory_format", &empty);
  aten.impl("empty_strided", &empty_strided);
  aten.impl("_copy_from", &copy_from);
  aten.impl("_copy_from_and_resize", &copy_from_and_resize);
  aten.impl("record_stream", &record_stream);
  aten.impl("_has_compatible_shallow_copy_type", &has_compatible_type);

  // Wherever the CPU has a kernel it is used in the place of torch's decomposition, so that the numbers are the CPU's.
  // Convolutions have none of their own, and for an unknown device torch would not choose one of the CPU's.
  const std::set<std::string> by_hand{"aten::empty", "aten::empty_strided", "aten::_copy_from", "aten::_copy_from_and_resize"};
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.getNamespace() != "aten" || (by_hand.count(name.name) && name.overload_name != "out")) continue;
    const auto op = dispatcher.findOp(name);
    const bool convolution = name.name == "aten::convolution" || name.name == "aten::convolution_backward";
    if (op && op->hasSchema() && ((convolution && name.overload_name.empty()) || op->hasKernelForDispatchKey(c10::DispatchKey::CPU)))
      aten.impl(toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&on_host>());
  }
  // A copy resolves conjugate and negative views itself; torch would resolve them by another copy, without end.
  for (const auto key : {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative}) {
    static std::vector<torch::Library> views;
    views.emplace_back(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    views.back().impl("_copy_from", torch::CppFunction::makeFallthrough());
  }
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&sdp_choice);
}

}  // namespace softnpu
