#include "hccl.h"

#include "soft.h"

namespace softnpu {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

Tensor view(const Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == kNpu, "hccl moves npu tensors only, got one on ", tensor.device());
  return host_view(tensor);
}

Tensors views(const Tensors& tensors) {
  Tensors made;
  for (const auto& each : tensors) made.push_back(view(each));
  return made;
}

std::vector<Tensors> views(const std::vector<Tensors>& lists) {
  std::vector<Tensors> made;
  for (const auto& each : lists) made.push_back(views(each));
  return made;
}

Tensors flat(const std::vector<Tensors>& lists) {
  Tensors made;
  for (const auto& each : lists) made.insert(made.end(), each.begin(), each.end());
  return made;
}

/// The host backend's work; its results are the npu tensors whose bytes were written.
class NpuWork final : public c10d::Work {
 public:
  NpuWork(WorkPtr host, Tensors results) : host_(std::move(host)), results_(std::move(results)) {}
  bool isCompleted() override { return host_->isCompleted(); }
  bool isSuccess() const override { return host_->isSuccess(); }
  std::exception_ptr exception() const override { return host_->exception(); }
  int sourceRank() const override { return host_->sourceRank(); }
  Tensors result() override { return results_; }
  void synchronize() override { host_->wait(); }
  bool wait(std::chrono::milliseconds timeout) override { return host_->wait(timeout); }
  void blockCurrentStream() override { host_->wait(); }
  void abort() override { host_->abort(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return host_->getFuture()->then(
        [results = results_](c10::ivalue::Future& done) {
          done.value();  // throws what the host's work threw
          return c10::IValue(results);
        },
        c10::ListType::ofTensors());
  }

 private:
  WorkPtr host_;
  Tensors results_;
};

WorkPtr work(WorkPtr host, Tensors results) { return c10::make_intrusive<NpuWork>(std::move(host), std::move(results)); }

class Hccl final : public c10d::Backend {
 public:
  explicit Hccl(c10::intrusive_ptr<c10d::Backend> host) : Backend(host->getRank(), host->getSize()), host_(std::move(host)) {}

  const std::string getBackendName() const override { return "hccl"; }
  void setTimeout(std::chrono::milliseconds timeout) override { host_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { host_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return host_->getSequenceNumberForGroup(); }
  void abort() override { host_->abort(); }
  void shutdown() override { host_->shutdown(); }

  WorkPtr broadcast(Tensors& data, const c10d::BroadcastOptions& options) override {
    auto lent = views(data);
    return work(host_->broadcast(lent, options), data);
  }
  WorkPtr allreduce(Tensors& data, const c10d::AllreduceOptions& options) override {
    auto lent = views(data);
    return work(host_->allreduce(lent, options), data);
  }
  WorkPtr allreduce_coalesced(Tensors& data, const c10d::AllreduceCoalescedOptions& options) override {
    auto lent = views(data);
    return work(host_->allreduce_coalesced(lent, options), data);
  }
  WorkPtr reduce(Tensors& data, const c10d::ReduceOptions& options) override {
    auto lent = views(data);
    return work(host_->reduce(lent, options), data);
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto into = views(outputs);
    auto from = views(inputs);
    return work(host_->allgather(into, from, options), flat(outputs));
  }
  WorkPtr _allgather_base(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    // Only the numbers of elements must fit, as with HCCL; gloo compares shapes.
    auto into = view(output).view(-1), from = view(input).view(-1);
    return work(host_->_allgather_base(into, from, options), {output});
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    auto into = views(outputs), from = views(inputs);
    return work(host_->allgather_into_tensor_coalesced(into, from, options), outputs);
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    auto into = views(outputs);
    auto from = views(inputs);
    return work(host_->gather(into, from, options), flat(outputs));
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    auto into = views(outputs);
    auto from = views(inputs);
    return work(host_->scatter(into, from, options), outputs);
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override {
    auto into = views(outputs);
    auto from = views(inputs);
    return work(host_->reduce_scatter(into, from, options), outputs);
  }
  WorkPtr _reduce_scatter_base(Tensor& output, Tensor& input, const c10d::ReduceScatterOptions& options) override {
    auto into = view(output).view(-1), from = view(input).view(-1);
    return work(host_->_reduce_scatter_base(into, from, options), {output});
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override {
    auto into = views(outputs), from = views(inputs);
    return work(host_->reduce_scatter_tensor_coalesced(into, from, options), outputs);
  }
  WorkPtr alltoall_base(
      Tensor& output, Tensor& input, std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
      const c10d::AllToAllOptions& options) override {
    auto into = view(output), from = view(input);
    return work(host_->alltoall_base(into, from, output_sizes, input_sizes, options), {output});
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    auto into = views(outputs), from = views(inputs);
    return work(host_->alltoall(into, from, options), outputs);
  }
  WorkPtr send(Tensors& data, int target, int tag) override {
    auto lent = views(data);
    return work(host_->send(lent, target, tag), data);
  }
  WorkPtr recv(Tensors& data, int source, int tag) override {
    auto lent = views(data);
    return work(host_->recv(lent, source, tag), data);
  }
  WorkPtr recvAnysource(Tensors& data, int tag) override {
    auto lent = views(data);
    return work(host_->recvAnysource(lent, tag), data);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return host_->barrier(options); }

 private:
  c10::intrusive_ptr<c10d::Backend> host_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> hccl_over(c10::intrusive_ptr<c10d::Backend> host) {
  return c10::make_intrusive<Hccl>(std::move(host));
}

}  // namespace softnpu
