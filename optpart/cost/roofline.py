"""The roofline: a call takes as long as its arithmetic or its memory traffic, whichever is longer.

    time = max(FLOPs / peak[dtype], bytes / bandwidth) + launch

(Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009, https://doi.org/10.1145/1498765.1498785.)
Times are whole nanoseconds, at least one for a call that moves a byte, so a sum of costs is exact.

* A call without a FLOP formula (pointwise, reductions, custom and higher-order operators) is priced
  by the bytes it moves.
* float32 products run at the float32 rate, float32 convolutions at the TF32 rate where there is one:
  PyTorch's defaults (``torch.backends.cuda.matmul.allow_tf32`` False, ``torch.backends.cudnn.allow_tf32``
  True).  ``tf32=True`` puts the products on TF32 too.
* ``launch`` (microseconds a call) is 0 unless it is given: it belongs to a machine, not to a data sheet,
  and a CUDA graph or a fused kernel does not pay it.
"""

from __future__ import annotations

from dataclasses import dataclass

from optpart.cost.bytes import bytes_moved, packet_name
from optpart.cost.devices import Device, whole_nanoseconds
from optpart.cost.flops import compute_dtype, count_flops, counter_key
from optpart.graph import Signature
from optpart.units import Microseconds

CONVOLUTIONS = frozenset(
    ("aten.convolution", "aten.convolution_backward", "aten._convolution", "aten.cudnn_convolution")
)


@dataclass(frozen=True, slots=True)
class Roofline:
    """The default cost model; see the module's docstring."""

    device: Device
    tf32: bool = False
    launch: Microseconds = Microseconds(0.0)

    @property
    def name(self) -> str:
        return f"roofline:{self.device.name}"

    def runtime(self, signature: Signature) -> Microseconds:
        flops = count_flops(signature) or 0
        arithmetic = flops / self.device.peak(self._dtype(signature))
        traffic = bytes_moved(signature) / (self.device.bandwidth * 1e9)
        return whole_nanoseconds(max(arithmetic, traffic) + self.launch * 1e-6)

    def _dtype(self, signature: Signature) -> str:
        dtype = compute_dtype(signature)
        on_tf32 = self.tf32 or packet_name(signature.target) in CONVOLUTIONS
        return "tf32" if dtype == "float32" and on_tf32 else dtype

    def key(self) -> str:
        return f"roofline 1 tf32={self.tf32} launch={self.launch} {counter_key()} {self.device.key()}"
