"""A MathOpt solve in a process of its own, which can be ended at any moment and takes nobody with it.

HiGHS ignores MathOpt's interrupter, loses its result in a Ctrl-C, and tells what it knows in its log only.
Here it runs in a child that is killed when its time is up, when Ctrl-C arrives or when it hangs; the log
comes line by line, so the parent has the last bound all the same.

    parent                                           child: OR-Tools and nothing else, kept for the next solve
       SolveRequest (model, parameters)  ─────────>  solve
       <─────────────────  LOG    lines, as they come
       <─────────────────  RESULT a SolveResultProto, or REFUSED the solver's words

A message is its kind (one byte), its length (eight) and its bytes.

* A new program, not a fork: torch's threads and locks are not in it.  It is up in about 0.1 s.
* It leads a session of its own, so a terminal's Ctrl-C reaches the parent only.
* When the parent ends in whatever way, the pipe closes, and the child ends by itself.
* After a fork (a data loader's worker) the new process has no children here, and starts its own.
* A child serves one solve at a time; solves in several threads have several children.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.math_opt import result_pb2, rpc_pb2

REQUEST, READY, LOG, RESULT, REFUSED = b"?", b"+", b"L", b"R", b"X"
_HEAD = struct.Struct("<cQ")
_PROGRAM = "import json, sys; sys.path = json.loads(sys.argv[1]); from optpart.solver.child import serve; serve()"
START_SECONDS = 60.0  # to import OR-Tools, on a busy machine
GRACE_SECONDS = 5.0  # what a solver may take beyond its time limit: to come to a stop, and to hand over its result


class NoChild(RuntimeError):
    """No child can be started here; the message says why."""


class Lost(RuntimeError):
    """The child ended, or had to be ended, before it gave its result; the message says why."""


class Refused(RuntimeError):
    """The solver refused the model or a parameter, or failed; the message is the solver's."""


def solve(
    request: rpc_pb2.SolveRequest, listen: Callable[[Sequence[str]], None], seconds: float
) -> result_pb2.SolveResultProto:
    """Solve in a child.

    Args:
        listen: gets the lines of the solver's log, as they come.
        seconds: its time limit (inf: none), which it may pass by ``GRACE_SECONDS``.

    Raises:
        NoChild: there is none, and there will be none.
        Lost: the child was killed, crashed, or was too late.
        Refused: the solver's own error.
    """
    child = _take()
    try:
        result = child.solve(request, listen, seconds)
    except Refused:
        _idle.append(child)
        raise
    except BaseException:  # Ctrl-C too: what it would answer now, nobody waits for
        child.end()
        raise
    _idle.append(child)
    return result


# ------------------------------------------------------------------------------------------ the parent


class _Child:
    """One process, and the two pipes to it."""

    def __init__(self) -> None:
        path = json.dumps([p for p in sys.path if isinstance(p, str)])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout.fileno()
        self._received = bytearray()
        self._poll = select.poll()
        self._poll.register(self.answers, select.POLLIN)
        _children.add(self)
        try:
            self._receive(time.monotonic() + START_SECONDS)
        except BaseException:  # Ctrl-C too: nobody knows of the process yet to end it
            self.end()
            raise

    def solve(
        self, request: rpc_pb2.SolveRequest, listen: Callable[[Sequence[str]], None], seconds: float
    ) -> result_pb2.SolveResultProto:
        from ortools.math_opt import result_pb2

        try:
            _send(self.requests, REQUEST, request.SerializeToString())
        except OSError as e:
            raise Lost(f"the solver's process does not listen: {e}") from None
        stop = time.monotonic() + seconds + GRACE_SECONDS
        while True:
            kind, data = self._receive(stop)
            if kind == LOG:
                listen(data.decode(errors="replace").split("\n"))
            elif kind == REFUSED:
                raise Refused(data.decode(errors="replace"))
            else:
                return result_pb2.SolveResultProto.FromString(data)

    def _receive(self, stop: float) -> tuple[bytes, bytes]:
        """The next message.

        Raises:
            Lost: it did not come until ``stop`` (of the monotonic clock), or never will.
        """
        kind, length = _HEAD.unpack(self._read(_HEAD.size, stop))
        return kind, self._read(length, stop)

    def _read(self, count: int, stop: float) -> bytes:
        while len(self._received) < count:
            left = min(stop - time.monotonic(), 1e6)
            if left <= 0:
                raise Lost("the solver's process did not keep to its time limit, and was ended")
            if self._poll.poll(1000 * left):
                chunk = os.read(self.answers, 1 << 20)
                if not chunk:
                    raise Lost(f"the solver's process ended before its time ({self._how_it_ended()})")
                self._received += chunk
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def _how_it_ended(self) -> str:
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "it closed its pipe"
        return f"exit code {code}" if code >= 0 else f"signal {-code}"

    def end(self) -> None:
        """Kill it, and wait for it: no zombie is left."""
        _children.discard(self)
        self.process.kill()
        self.process.wait()
        self.close()

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


_children: set[_Child] = set()  # all of this process
_idle: list[_Child] = []  # those that wait for a request
_refused: list[str] = []  # why none can be started


def _take() -> _Child:
    """An idle child that still lives, or a new one."""
    while _idle:
        child = _idle.pop()
        if child.process.poll() is None:
            return child
        child.end()
    if _refused:
        raise NoChild(_refused[0])
    try:
        return _Child()
    except (OSError, Lost) as e:
        _refused.append(str(e))
        raise NoChild(str(e)) from None


@atexit.register
def end_all() -> None:
    """End every child of this process."""
    _idle.clear()
    for child in list(_children):
        child.end()


def _forget() -> None:
    """In a new fork: the children are the parent's.  Their pipes are closed, for they close when all ends are."""
    for child in _children:
        child.process.returncode = 0  # nothing to wait for
        child.close()
    _children.clear()
    _idle.clear()


os.register_at_fork(after_in_child=_forget)


# ------------------------------------------------------------------------------------------- the child


def serve() -> None:
    """Answer requests until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a solver's C++ code prints is no message
    from ortools.math_opt import callback_pb2, parameters_pb2, rpc_pb2
    from ortools.math_opt.core.python import solver

    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()
    _send(answers, READY, b"")
    while True:
        request = rpc_pb2.SolveRequest.FromString(requests.get())
        try:
            result = solver.solve(
                request.model,
                request.solver_type,
                parameters_pb2.SolverInitializerProto(),
                request.parameters,
                request.model_parameters,
                lambda lines: _send(answers, LOG, "\n".join(lines).encode()),
                callback_pb2.CallbackRegistrationProto(),
                None,
                None,
            )
        except Exception as e:  # it is the parent's to raise
            _send(answers, REFUSED, str(getattr(e, "message", e)).encode())
        else:
            _send(answers, RESULT, result.SerializeToString())


def _read_requests(requests: queue.SimpleQueue[bytes]) -> None:
    """Also while a solve runs, for the end of the pipe is the end of the parent."""
    with os.fdopen(0, "rb") as pipe:
        while len(head := pipe.read(_HEAD.size)) == _HEAD.size:
            requests.put(pipe.read(_HEAD.unpack(head)[1]))
    os._exit(0)


def _send(pipe: IO[bytes], kind: bytes, data: bytes) -> None:
    message = memoryview(_HEAD.pack(kind, len(data)) + data)
    while message:
        message = message[pipe.write(message) :]
