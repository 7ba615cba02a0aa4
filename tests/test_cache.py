"""The cache of measurements: one file, many processes, nothing lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_calls import mm

from optpart.cost import cache as caches
from optpart.cost.cache import Cache, Row, default_cache, rows_from_json, rows_to_json
from optpart.graph import Signature


def test_the_first_value_wins_until_it_is_replaced(cache: Cache) -> None:
    call = mm(3)
    assert cache.get("time", "here", [call]) == {}
    assert cache.put("time", "here", {call: [1.5, "a"]}) == {call: [1.5, "a"]}
    identity = cache.identity()
    assert cache.put("time", "here", {call: 2, mm(4): 4}) == {call: [1.5, "a"], mm(4): 4}
    assert cache.get("time", "there", [call]) == cache.get("memory", "here", [call]) == {}
    assert Cache(cache.path).identity() == identity == cache.identity()
    rows = rows_from_json(json.loads(json.dumps(rows_to_json(cache.rows()))))
    assert rows == cache.rows()
    other = Cache()
    assert other.identity() != identity
    other.replace(rows)
    assert other.rows() == cache.rows()
    before = cache.identity()
    cache.replace([Row("time", "here", call, 3)])
    assert cache.get("time", "here", [call]) == {call: 3}
    assert cache.identity() != before
    with pytest.raises(ValueError, match="no measurements of this package"):
        rows_from_json({"format": "other"})


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPTPART_CACHE", str(tmp_path / "mine"))
    assert default_cache().path is not None
    assert default_cache().path.parent == tmp_path / "mine"  # type: ignore[union-attr]
    assert default_cache() is default_cache()
    monkeypatch.delenv("OPTPART_CACHE")
    monkeypatch.setenv("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME", str(tmp_path))
    assert caches.cache_folder() == tmp_path / "optpart"


def test_a_file_that_cannot_be_used_is_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"no database at all, " * 100)
    for path in (file, file / "below" / "it.sqlite"):
        caplog.clear()
        table, call = Cache(path), mm(3)
        assert table.put("time", "here", {call: 1}) == {call: 1}
        assert table.get("time", "here", [call]) == {call: 1}
        assert table.identity() == table.identity()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "kept in memory" in caplog.text


WRITER = """
import sys
from pathlib import Path
from optpart.cost.cache import Cache
from optpart.graph import Signature
cache, who, count = Cache(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
for i in range(count):
    mine, shared = Signature(f"{who}.{i}"), Signature(f"shared.{i}")
    cache.put("time", "here", {mine: "x" * 500, shared: who})
    print(i, flush=True)
"""


def writer(cache: Cache, who: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(cache.path), who, str(count)]
    return subprocess.Popen(command, cwd=Path(__file__).parent.parent, stdout=subprocess.PIPE, text=True)


def check_integrity(cache: Cache) -> None:
    assert cache._transaction(lambda c: c.execute("PRAGMA integrity_check").fetchall()) == [("ok",)]
    assert cache._memory is None


def test_several_processes_write_at_once(cache: Cache) -> None:
    count, who = 40, ("a", "b", "c")
    processes = [writer(cache, name, count) for name in who]
    assert [p.communicate()[0].split()[-1] for p in processes] == [str(count - 1)] * 3
    check_integrity(cache)
    assert len(cache.rows()) == count * (len(who) + 1)
    shared = cache.get("time", "here", [Signature(f"shared.{i}") for i in range(count)])
    assert set(shared.values()) <= set(who)


def test_a_killed_writer_loses_nothing_that_was_written(cache: Cache) -> None:
    for lines in (1, 7, 20):
        process = writer(cache, f"killed {lines}", 10**6)
        assert process.stdout is not None
        for _ in range(lines):
            last = int(process.stdout.readline())
        process.kill()
        process.communicate()
        written = [Signature(f"killed {lines}.{i}") for i in range(last + 1)]
        assert len(cache.get("time", "here", written)) == len(written) == lines
        check_integrity(cache)
        assert cache.put("time", "here", {mm(lines): 1}) == {mm(lines): 1}
