"""Sizes as people type and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optpart.units import format_bytes, format_time, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("0", 0),
        ("7 B", 7),
        ("12 bytes", 12),
        ("1 KiB", 1024),
        ("300 MiB", 300 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        (".5 TiB", 2**39),
        ("2GB", 2 * 10**9),
        ("3 kB", 3000),
        (" 10 mb ", 10**7),
        ("9007199254740993", 2**53 + 1),  # more than a float holds
    ],
)
def test_parse(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "-1 MiB", "1 M", "2 G", "1 PiB", "1,5 GiB", "1e9", "0.5 of it", "1 MiB 2"])
def test_what_is_no_size_is_refused_with_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="not a size") as refused:
        parse_bytes(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (300 * 2**20, "300.00 MiB"),
        (2**40, "1.00 TiB"),
        (2**52, "4096.00 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_format(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(0, 2**45))
def test_what_is_printed_can_be_read_again(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == pytest.approx(size, rel=0.005)


@pytest.mark.parametrize(
    ("time", "text"),
    [(0.0, "0.00 us"), (3.2, "3.20 us"), (14_600.0, "14.60 ms"), (1.25e6, "1.25 s"), (999.0, "999.00 us")],
)
def test_format_time(time: float, text: str) -> None:
    assert format_time(time) == text
