"""The machine at hand as text: all that a measurement depends on beside the signature of the call.

    "torch 2.13.0+cpu | cpu Intel(R) Xeon(R) Processor AVX512 | 2 threads | mkldnn=True deterministic=False ..."

Two machines with the same text may share measurements.  Torch is imported when asked.
"""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path
from typing import Any

from optpart.units import Bytes


def environment(device: str) -> str:
    """The machine as far as calls on ``device`` ("cpu", "cuda:0") are concerned.

    The number of threads is part of it on every device: a graph on a GPU has some calls on the CPU.

    Raises:
        RuntimeError: there is no such device here.
    """
    import torch

    if device.startswith("cuda"):
        check_device(device)
        cudnn: Any = torch.backends.cudnn
        name = f"{torch.cuda.get_device_name(device)} cuda {torch.version.cuda} cudnn {cudnn.version()}"
        precision = f"matmul={torch.backends.cuda.matmul.fp32_precision} conv={cudnn.conv.fp32_precision}"
        flags = f"benchmark={cudnn.benchmark} {precision}"
    else:
        mkldnn: Any = torch.backends.mkldnn
        name = f"{cpu_name()} {torch.backends.cpu.get_cpu_capability()}"
        flags = f"mkldnn={mkldnn.enabled} matmul={mkldnn.matmul.fp32_precision}"
    flags += f" deterministic={torch.are_deterministic_algorithms_enabled()}"
    kind = device.partition(":")[0]
    return f"torch {torch.__version__} | {kind} {name} | {torch.get_num_threads()} threads | {flags}"


def check_device(device: str) -> None:
    """Return if there is such a device here.

    Raises:
        ValueError: it is no device that calls are measured on.
        RuntimeError: this machine has none.
    """
    import torch

    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f"device {device!r}: expected cpu, cuda, or cuda with a number such as cuda:0")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise RuntimeError(
            f"no CUDA device here to measure {device!r} on; import a profile that was measured where there is one"
        )


def environments() -> tuple[str, ...]:
    """The environments of the CPU and, if there is one, of the first GPU."""
    import torch

    return tuple(environment(device) for device in ("cpu", "cuda:0") if device == "cpu" or torch.cuda.is_available())


@functools.cache
def cpu_name() -> str:
    """The processor's model where the system says it, else the architecture ("x86_64")."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def present_device() -> str:
    """The device whose memory is the scarce one: the first GPU, or the CPU where there is none."""
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def free_bytes(device: str) -> Bytes | None:
    """Memory that can still be allocated on a device; None if the system does not say."""
    import torch

    if device.startswith("cuda"):
        return Bytes(torch.cuda.mem_get_info(device)[0])
    info = Path("/proc/meminfo")
    if info.exists() and (match := re.search(r"MemAvailable:\s+(\d+) kB", info.read_text())):
        return Bytes(int(match[1]) * 1024)
    return None
