"""How far a long run is, on standard error: a line for each finished piece, and a bar below them on a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from optpart.sweep import Watch


class Bar(Watch):
    """A context manager; where standard error is no terminal, the lines are printed and the bar is not."""

    def __init__(self) -> None:
        columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
        console = Console(file=sys.stderr, highlight=False)
        # standard output is for the report: it is not even looked at
        self._bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self.finished = 0

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def total(self, pieces: int) -> None:
        self._bar.update(self._task, total=pieces)

    def begin(self, what: str) -> None:
        self._bar.update(self._task, description=what)

    def end(self, line: str = "", again: bool = False) -> None:
        self.finished += 1
        self._bar.advance(self._task)
        if line:
            self._bar.console.print(f"{line}{' (from an earlier run)' if again else ''}", markup=False, soft_wrap=True)
