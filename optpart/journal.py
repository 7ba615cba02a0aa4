"""Finished pieces of a long run, on disk as soon as they are finished, so that a kill loses one piece at most.

A journal belongs to a key, which says what every piece depends on; another key is another journal.  It is
one file of JSON lines, each the name of a piece and what came of it.  A line that a kill cut off is left
out, and the piece is done again.  A folder that cannot be written costs a warning and the memory, not the run.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)


class Journal:
    """What is known of each piece, by name (plain data).  Without a folder it is kept in this process only."""

    def __init__(self, folder: Path | None = None, key: Any = None) -> None:
        self._known: dict[str, Any] = {}
        self.path: Path | None = None
        if folder is not None:
            text = json.dumps(key, sort_keys=True, default=repr)
            self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.jsonl"
            self._read(self.path)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def get(self, name: str) -> Any:
        """What came of a piece; None if it is not finished."""
        return self._known.get(name)

    def put(self, name: str, value: Any) -> None:
        """Write down what came of a piece: after the return it is on the disk."""
        self._known[name] = value
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                # a line that was cut off has no end yet; an empty line is nothing
                file.write("\n" + json.dumps([name, value]) + "\n")
        except OSError as e:
            logger.warning("what is finished is not kept: %s cannot be written (%s)", self.path, e)
            self.path = None

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        except OSError as e:
            logger.warning("what was finished is not known: %s cannot be read (%s)", path, e)
            return
        for line in lines:
            try:
                name, value = json.loads(line)
                self._known[str(name)] = value
            except ValueError:
                continue
