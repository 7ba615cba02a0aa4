"""``python -m experiments list | run NAME | all [--smoke] [--fresh] | tables | figures``, from a checkout."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.figures import write_figures
from experiments.registry import NAMES, Experiment, get
from experiments.run import RESULTS, failed, run, skipped
from experiments.tables import PAPER, write_tables
from optpart.figures import NoFigure


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code: 1 if a smoke run has a failed row, 2 for a wrong argument."""
    args = _parser().parse_args(argv)
    if args.command in ("tables", "figures"):
        return make((args.command,), args.results, args.out)
    if getattr(args, "instances", None) is not None:
        os.environ["OPTPART_INSTANCES"] = str(args.instances)
    try:
        chosen = [get(name) for name in ([args.name] if args.command == "run" else NAMES)]
    except ValueError as e:
        print(f"experiments: {e}", file=sys.stderr)
        return 2
    if args.command == "list":
        print("\n".join(map(_line, chosen)))
        return 0
    folder = args.out or (Path(tempfile.mkdtemp(prefix="optpart-experiments-")) if args.smoke else RESULTS)
    bad = 0
    for experiment in chosen:
        print(f"{experiment.name} ({experiment.label}) -> {folder / experiment.name}.csv", file=sys.stderr, flush=True)
        try:
            rows = run(experiment, folder, smoke=args.smoke, fresh=args.fresh)
        except ValueError as e:
            print(f"experiments: {e}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print("experiments: interrupted; the same command goes on from here", file=sys.stderr)
            return 130
        print(f"{experiment.label}: {experiment.title}\n{experiment.summary([r for r in rows if not r['reason']])}")
        for row in skipped(rows):
            print(f"{row['reason']}: {' '.join(row[k] for k in experiment.keys)}")
        for row in failed(rows):
            print(f"failed: {' '.join(row[k] for k in experiment.keys)}: {row['reason']}")
        bad += len(failed(rows))
        print(flush=True)
    if args.command == "all":
        bad += make(("tables", "figures"), folder, folder if args.smoke or args.out else PAPER)
    return 1 if args.smoke and bad else 0


def make(what: Sequence[str], results: Path, paper: Path) -> int:
    """Tables and figures of the results in a folder; the exit code: 2 if they cannot be made here."""
    makers = {"tables": write_tables, "figures": write_figures}
    try:
        for name in what:
            for file in makers[name](results, paper / name):
                print(file)
    except (ImportError, NoFigure) as e:
        print(f"experiments: {e}; tables and figures need: pip install -e '.[paper]'", file=sys.stderr)
        return 2
    return 0


def _line(experiment: Experiment) -> str:
    about = f"{len(experiment.cases):>3} rows, {experiment.minutes:>3} min"
    return f"{experiment.name:<16} {experiment.label:<9} {about}   {experiment.title}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description="Programs that make tables and figures.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the experiments, and how long they take")
    for name, about in (("tables", "LaTeX tables and numbers"), ("figures", "PDFs")):
        making = commands.add_parser(name, help=f"{about} for the paper, from the results")
        making.add_argument("--results", type=Path, metavar="FOLDER", default=RESULTS, help="where the CSVs are")
        making.add_argument(
            "--out", type=Path, metavar="FOLDER", default=PAPER, help=f"{name}/ is made in it (default: paper)"
        )
    one = commands.add_parser("run", help="one experiment; rows that are there are not run again")
    one.add_argument("name")
    every = commands.add_parser("all", help="all experiments, one after the other, then tables and figures")
    for command in (one, every):
        command.add_argument("--smoke", action="store_true", help="small cases, seconds each, into a temporary folder")
        command.add_argument("--fresh", action="store_true", help="run the rows again that are there")
        command.add_argument(
            "--out", type=Path, metavar="FOLDER", help="where the CSV goes (default: experiments/results)"
        )
        command.add_argument(
            "--instances", type=Path, metavar="DIR", help="public instances as JSON files (default: $OPTPART_INSTANCES)"
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
