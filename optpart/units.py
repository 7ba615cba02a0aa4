"""Units as types: a number that has a unit says so, and mypy keeps the kinds apart.

``Bytes``, ``Microseconds`` and ``Flops`` are NewTypes: free at run time.  Sizes that a person types
("300 MiB", "2GB") are parsed here and nowhere else, and sizes that a person reads are printed here.
"""

from __future__ import annotations

import re
from typing import NewType

Bytes = NewType("Bytes", int)
Microseconds = NewType("Microseconds", float)
Flops = NewType("Flops", int)

_BINARY = {"k": 10, "m": 20, "g": 30, "t": 40}
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SIZE = re.compile(r"\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?:(?P<prefix>[kmgt])(?P<binary>i?))?(?P<unit>b|bytes?)?\s*", re.I)


def parse_bytes(text: str) -> Bytes:
    """``"300 MiB"``, ``"2GB"``, ``"1.5 GiB"`` or ``"4096"`` as a number of bytes.

    KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB powers of 1000.  A bare K, M, G or T is
    refused: it means one thing to some and the other to the rest.

    Raises:
        ValueError: the text is no size; the message says what was given and what is accepted.
    """
    match = _SIZE.fullmatch(text)
    if match is None or (match["prefix"] and not match["unit"]):
        raise ValueError(f"not a size: {text!r}; write bytes or a size with its unit, such as '300 MiB', '2 GB' or '4096'")
    scale = 1
    if match["prefix"]:
        prefix = match["prefix"].lower()
        scale = 1 << _BINARY[prefix] if match["binary"] else _DECIMAL[prefix]
    return Bytes(round(float(match["number"]) * scale)) if "." in match["number"] else Bytes(int(match["number"]) * scale)


def format_bytes(size: int) -> str:
    """A size for a person: ``"19.33 MiB"``; below one KiB the exact number of bytes."""
    if abs(size) < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if abs(value) < 1024:
            return f"{value:.2f} {unit}"
    return f"{value / 1024:.2f} TiB"


def format_time(time: float) -> str:
    """A run time for a person, from microseconds: ``"3.20 us"``, ``"14.60 ms"``, ``"1.25 s"``."""
    if time < 1e3:
        return f"{time:.2f} us"
    return f"{time / 1e3:.2f} ms" if time < 1e6 else f"{time / 1e6:.2f} s"
