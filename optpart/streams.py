"""Who may write where, while a command runs: standard output is for its report and for nothing else."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def messages(verbose: bool) -> Iterator[None]:
    """Warnings as one line each; this package's log, from INFO on if ``verbose``; both on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    log = logging.getLogger("optpart")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"optpart: warning: {message}", file=sys.stderr)
            yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """What torch, a compiler or a solver's C++ code prints must not end up in the report."""
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        libc.fflush(None)  # C's own buffer, while it still leads to standard error
        os.dup2(kept, 1)
        os.close(kept)
