"""`torch.npu.amp`."""

from torch_npu.npu.amp.autocast_mode import autocast as autocast
from torch_npu.npu.amp.grad_scaler import GradScaler as GradScaler
