"""The command ``optpart``.  Reports go to standard output, everything else to standard error.

Exit codes: 0 = done, and gradients agree where they were checked; 1 = gradients differ; 2 = a wrong argument;
3 = no plan fits the memory budget; 4 = no plan was found; 130 = interrupted;
141 = nobody read the report to its end.

Torch is loaded when a model is, not before: ``--help`` and a wrong name answer at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from optpart.cost.calibrate import calibrate, calibrations
from optpart.cost.devices import device_rows
from optpart.cost.machine import check_device
from optpart.exits import (
    CUT_OFF,
    DONE,
    GRADIENTS_DIFFER,
    INFEASIBLE,
    INTERRUPTED,
    NO_PLAN,
    WRONG_ARGUMENT,
    WrongArgument,
)
from optpart.explain import explain
from optpart.figures import NoFigure, check_figure, draw_plan
from optpart.frontier_figure import draw_frontier
from optpart.frontier_report import frontier_text, frontier_to_csv, frontier_to_json
from optpart.plans import plan_to_json
from optpart.problem import problem_to_json
from optpart.report import Report
from optpart.report_json import infeasible_to_json, report_to_json
from optpart.settings import Settings, parse_budget
from optpart.solve_command import add_solve_arguments, solve_command
from optpart.solver.base import InfeasibleBudget
from optpart.streams import messages, stdout_to_stderr

COMPILERS = ("aot_eager", "inductor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which measures memory, talks on stderr
    try:
        args = _parser().parse_args(argv)
    except SystemExit as e:  # --help, --version, and what argparse refuses
        return int(e.code or 0)
    with messages(args.verbose or getattr(args, "live", False)):
        try:
            code: int = args.run(args)
            sys.stdout.flush()
            return code
        except WrongArgument as e:
            return _say(e, WRONG_ARGUMENT)
        except InfeasibleBudget as e:
            return _say(e, INFEASIBLE)
        except RuntimeError as e:
            if args.verbose:
                raise
            return _say(f"{e} (--verbose shows where)", NO_PLAN)
        except BrokenPipeError:  # the reader had enough (| head)
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return CUT_OFF
        except KeyboardInterrupt as e:
            return _say(f"interrupted; {e}" if str(e) else "interrupted", INTERRUPTED)


# --------------------------------------------------------------------------------------------- commands


def plan_command(args: argparse.Namespace) -> int:
    """optpart plan: solve, compare with PyTorch, check gradients, report."""
    settings = _settings(args)
    _check_writable(args.plan, args.problem, args.timeline)
    _check_figure(args.timeline)
    loaded = _load(args, fake=args.no_gradients and not args.measure)
    config = {"preset": args.preset, **asdict(loaded.config)}
    try:
        with stdout_to_stderr():
            from optpart.planning import plan

            report = plan(
                loaded.model,
                loaded.batch,
                compare=not args.no_compare,
                check=not args.no_gradients,
                measure=args.measure,
                compiler=args.compiler,
                name=args.model,
                keep_on_interrupt=True,
                **settings,
            )
    except InfeasibleBudget as e:
        if args.json:
            _print_json(infeasible_to_json(args.model, config, Settings.of(settings), e))
        raise
    report = replace(report, config=config)
    for graph, suffix in zip(report.graphs, _suffixes(len(report.graphs))):
        _write(args.plan, suffix, plan_to_json(graph.plan))
        _write(args.problem, suffix, problem_to_json(graph.problem.with_budget(graph.budget_bytes)))
        if args.timeline is not None:
            with stdout_to_stderr():
                draw_plan(_numbered(args.timeline, suffix), graph, f"{graph.name}: live memory, step by step")
    if args.json:
        _print_json(report_to_json(report))
    else:
        print(report, end="")
    if report.interrupted:
        return _say("interrupted: the plan is the best so far; nothing was compared, checked or measured", INTERRUPTED)
    return DONE if _agrees(report) else GRADIENTS_DIFFER


def _agrees(report: Report) -> bool:
    check = report.gradients
    return check is None or (check.agree and check.equal_bitwise)


def frontier_command(args: argparse.Namespace) -> int:
    """optpart frontier: peak memory against recompute time, ours beside PyTorch's, as planned and as measured."""
    settings = _settings(args)
    del settings["memory_budget"]
    _check_writable(args.csv, args.svg)
    _check_figure(args.svg)
    if args.points < 2:
        raise WrongArgument(f"--points {args.points}: expected 2 or more")
    loaded = _load(args, fake=args.no_measure)
    with stdout_to_stderr():
        from optpart.frontiers import frontier
        from optpart.progress import Bar

        with Bar() as bar:
            try:
                found = frontier(
                    loaded.model,
                    loaded.batch,
                    points=args.points,
                    measured=not args.no_measure,
                    compare=not args.no_compare,
                    at_pytorch=args.at_pytorch,
                    name=args.model,
                    fresh=args.fresh,
                    watch=bar,
                    **settings,
                )
            except KeyboardInterrupt:
                raise KeyboardInterrupt("what is finished is kept, and the same command goes on from there") from None
    found = replace(found, config={"preset": args.preset, **asdict(loaded.config)})
    if args.csv is not None:
        Path(args.csv).write_text(frontier_to_csv(found))
    if args.svg is not None:
        with stdout_to_stderr():
            draw_frontier(args.svg, found, f"{args.model}: peak memory against recompute time")
    if args.json:
        _print_json(frontier_to_json(found))
    else:
        print(frontier_text(found), end="")
    return DONE


def explain_command(args: argparse.Namespace) -> int:
    """optpart explain: why a value is saved or not, why an op runs again or not."""
    settings = _settings(args)
    loaded = _load(args, fake=True)
    with stdout_to_stderr():
        from optpart.planning import plan

        report = plan(loaded.model, loaded.batch, compare=False, name=args.model, **settings)
    try:
        print("\n\n".join(explain(g.problem, g.plan, args.name) for g in report.graphs))
    except ValueError as e:
        raise WrongArgument(e) from None
    return DONE


def capture_command(args: argparse.Namespace) -> int:
    """optpart capture: the problem of a model as JSON, for a machine without torch."""
    settings = _settings(args)
    _check_writable(args.output)
    loaded = _load(args, fake=True)
    with stdout_to_stderr():
        from optpart.cost.model import build_problem
        from optpart.planning import capture_joint, trace

        graphs = [capture_joint(j, name).graph for j, name in trace(loaded.model, loaded.batch, args.model)]
        problems = [build_problem(graph, settings["cost_model"]) for graph in graphs]
    for problem, suffix in zip(problems, _suffixes(len(problems))):
        if args.output == "-":
            print(json.dumps(problem_to_json(problem)))
        else:
            _write(args.output, suffix, problem_to_json(problem))
    return DONE


def profile_command(args: argparse.Namespace) -> int:
    """optpart profile: time each distinct call of a model on the device at hand, into the cache of measurements."""
    _check_writable(args.export)
    with stdout_to_stderr():
        from optpart.profile_command import profile_model, profile_text, profile_to_json, take_over

        try:
            check_device(args.device)
            if args.import_ is not None:
                print(take_over(args.import_, args.device), file=sys.stderr)
        except ValueError as e:
            raise WrongArgument(e) from None
    loaded = _load(args, fake=True)
    with stdout_to_stderr():
        from optpart.planning import capture_joint, trace
        from optpart.progress import Bar

        graphs = [capture_joint(j, name).graph for j, name in trace(loaded.model, loaded.batch, args.model)]
        with Bar() as bar:
            report = profile_model(graphs, args.model, watch=bar)
    _write(args.export, "", report.profile.to_json())
    if args.json:
        _print_json(profile_to_json(report, {"preset": args.preset, **asdict(loaded.config)}))
    else:
        print(profile_text(report), end="")
    return DONE


def models_command(args: argparse.Namespace) -> int:
    """optpart models: what there is to plan."""
    from optpart_models.registry import TITLES

    for name, title in TITLES.items():
        print(f"{name:<10}  {title}")
    return DONE


def devices_command(args: argparse.Namespace) -> int:
    """optpart devices: the table that roofline costs come from, and where each row comes from."""
    if args.calibrate:
        with stdout_to_stderr():
            calibrate(tell=lambda what: print(f"measuring {what}", file=sys.stderr, flush=True))
    for row in device_rows(calibrations()):
        rates = ", ".join(f"{k.removesuffix('_tflops')} {v:.4g}" for k, v in row.items() if k.endswith("tflops") and v)
        print(f"{row['device']:<10}  {row['bandwidth_gb_per_s']:>6.4g} GB/s; TFLOP/s: {rates}; {row['source']}")
    return DONE


# -------------------------------------------------------------------------------------------- arguments


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_ARGUMENT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="optpart", description="Optimal save-or-recompute partitions of PyTorch's joint graphs.")
    parser.add_argument("--version", action="version", version=f"optpart {_version()}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")

    def add(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=run.__doc__.partition(": ")[2])
        command.set_defaults(run=run)
        command.add_argument("--verbose", action="store_true", help="the solver's log, on standard error")
        return command

    command = add("plan", plan_command, "plan a model, compare with PyTorch, check gradients")
    _model_arguments(command)
    _solver_arguments(command)
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.add_argument("--no-gradients", action="store_true", help="check no gradients, so run no step and make no weights")
    command.add_argument("--measure", action="store_true", help="run a step and put the measured peak beside the predicted one")
    command.add_argument(
        "--compiler", metavar="C", default="aot_eager", choices=COMPILERS, help="of the measured step: aot_eager or inductor"
    )
    command.add_argument("--timeline", metavar="FILE", help="draw live bytes by step (svg, pdf, png)")
    command.add_argument("--no-compare", action="store_true", help="leave PyTorch's partitions out")
    command.add_argument("--plan", metavar="FILE", help="write the plan as JSON")
    command.add_argument("--problem", metavar="FILE", help="write the problem as JSON")

    command = add("frontier", frontier_command, "peak memory against recompute time, beside PyTorch's")
    _model_arguments(command)
    command.add_argument("--points", metavar="N", type=int, default=12, help="budgets, from the smallest peak to the least time")
    _solver_arguments(command, budget=False)
    command.add_argument("--csv", metavar="FILE", help="write a row for each point, and for each of PyTorch's")
    command.add_argument("--svg", metavar="FILE", help="draw it (svg, pdf, png)")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")
    command.add_argument("--no-measure", action="store_true", help="run no step and make no weights")
    command.add_argument("--no-compare", action="store_true", help="leave PyTorch's partitions out")
    command.add_argument("--at-pytorch", action="store_true", help="solve at the peaks of PyTorch's partitions too")
    command.add_argument("--fresh", action="store_true", help="do again what an earlier run of the same command has finished")

    command = add("explain", explain_command, "why a value is saved or an op recomputed")
    _model_arguments(command)
    command.add_argument("name", metavar="VALUE_OR_OP", help="its name in the graph, such as addmm_1")
    _solver_arguments(command)

    command = add("capture", capture_command, "write a model's problem as JSON")
    _model_arguments(command)
    command.add_argument("-o", "--output", metavar="FILE", required=True, help="'-': standard output")
    command.add_argument("--cost-model", metavar="M", default="roofline")

    command = add("solve", solve_command, "solve a problem from a file, with proof; needs no torch")
    add_solve_arguments(command)

    command = add("profile", profile_command, "time a model's calls on this machine, for the cost model 'profiled'")
    _model_arguments(command)
    command.add_argument("--device", metavar="D", default="cpu", help="where the calls run: cpu, cuda, cuda:1")
    command.add_argument("--import", metavar="FILE", dest="import_", help="take over the measurements of a profile first")
    command.add_argument("--export", metavar="FILE", help="write the profile as JSON, for --cost-model profiled:FILE")
    command.add_argument("--json", action="store_true", help="one JSON object on standard output")

    add("models", models_command, "list the models")
    command = add("devices", devices_command, "list the devices of the cost models")
    command.add_argument("--calibrate", action="store_true", help="measure this machine first: the device 'here'")
    return parser


def _model_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL", help="one of those that 'optpart models' lists")
    command.add_argument("--preset", default="default", help="settings of the model: tiny, default, real")
    command.add_argument(
        "--config", metavar="KEY=VALUE", nargs="+", action="extend", default=[], help="single settings, such as layers=12"
    )


def _solver_arguments(command: argparse.ArgumentParser, *, budget: bool = True) -> None:
    if budget:
        command.add_argument("--memory-budget", metavar="B", default="none", help="0.5 (a fraction), '300 MiB', bytes, auto")
    command.add_argument("--cost-model", metavar="M", default="roofline", help="roofline, roofline:h100, bytes, flops, unit, profiled")
    what = "seconds for the solver" if budget else "seconds for the solver, for each budget"
    command.add_argument("--time-limit", metavar="S", type=float, default=30.0, help=what)
    command.add_argument("--seed", metavar="N", type=int, default=0)
    command.add_argument("--threads", metavar="N", type=int, default=None)
    command.add_argument("--workspace", metavar="W", default="measured", help="of calls, under a budget: measured or none")
    command.add_argument("--on-failure", metavar="WHAT", default="min_cut", help="min_cut (fall back to PyTorch's) or raise")


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords of Settings, checked before anything is loaded."""
    names = ("cost_model", "time_limit", "seed", "threads", "workspace", "on_failure")
    try:
        given = {name: getattr(args, name) for name in names if hasattr(args, name)}
        given["memory_budget"] = parse_budget(getattr(args, "memory_budget", "none"))
        Settings.of(given)
    except ValueError as e:
        raise WrongArgument(e) from None
    return given


def _load(args: argparse.Namespace, *, fake: bool) -> Any:
    """The model and its batch; ``fake``: without weights, which planning does not need."""
    import optpart_models

    overrides = {}
    for item in args.config:
        key, equals, value = item.partition("=")
        if not equals:
            raise WrongArgument(f"--config {item}: expected key=value")
        overrides[key] = value
    try:
        optpart_models.configure(optpart_models.get(args.model), args.preset, overrides)
    except ValueError as e:
        raise WrongArgument(e) from None
    with stdout_to_stderr():
        return optpart_models.load(args.model, args.preset, overrides, seed=getattr(args, "seed", 0), device=getattr(args, "device", "cpu"), fake=fake)


# ----------------------------------------------------------------------------------------------- output


def _print_json(data: dict[str, Any]) -> None:
    print(json.dumps(data, allow_nan=False, indent=1))


def _check_writable(*files: str | None) -> None:
    """A file that cannot be written is refused before minutes are spent on what should go into it."""
    for file in files:
        if file is not None and file != "-" and (Path(file).is_dir() or not Path(file).absolute().parent.is_dir()):
            raise WrongArgument(f"cannot write {file}: no such directory, or it is one")


def _suffixes(n: int) -> list[str]:
    """What a model's several graphs add to a file's name."""
    return [""] if n == 1 else [f".{i}" for i in range(1, n + 1)]


def _write(file: str | None, suffix: str, data: dict[str, Any]) -> None:
    if file is not None:
        _numbered(file, suffix).write_text(json.dumps(data) + "\n")


def _numbered(file: str, suffix: str) -> Path:
    path = Path(file)
    return path.with_name(f"{path.stem}{suffix}{path.suffix}")


def _check_figure(*files: str | None) -> None:
    try:
        check_figure(*files)
    except NoFigure as e:
        raise WrongArgument(e) from None


def _say(message: object, code: int) -> int:
    print(f"optpart: {message}", file=sys.stderr)
    return code


def _version() -> str:
    try:
        return metadata.version("optpart")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
