// The process-group backend `hccl`.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace softnpu {

/// Collectives on npu tensors, carried by a backend for host tensors (gloo). Refuses host tensors, as HCCL does.
c10::intrusive_ptr<c10d::Backend> hccl_over(c10::intrusive_ptr<c10d::Backend> host);

}  // namespace softnpu
