"""The levers: what makes the stage models small and the search short, each with a switch, so that an ablation is a loop.

A lever changes how long a search takes and how far it comes, never what is optimal: models without one have the
same optimum (``tests/test_levers.py``, against exhaustive search), and what is proven without one holds.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass(frozen=True, slots=True)
class Levers:
    """Switches, all on by default.

    In the models (:mod:`optpart.formulation.stages`):

    * ``last_uses``: no variable says that a value is there, or made again, after the last stage that it is for.
    * ``dominated_saves``: a value is not saved where saving what is made of it is no worse.
    * ``carried_or_made``: S + R <= 1, what is made again was not carried.
    * ``free_ops_run``: an op that is free to run on both sides and is behind a need runs at least once.
    * ``reachable_rows``: a memory row that cannot reach the limit, whatever is decided, is left out.
    * ``shared_sums``: what several memory rows have in common is a column, not repeated in each of them.

    In the search (:mod:`optpart.peak_search`):

    * ``necessary_first``: a limit below what some single step needs is refused without a solver.
    * ``cuts_first``: the plans of the parametric minimum cut are there before any model is solved.
    * ``windows``: models with few binaries, one that gives plans and one that gives a bound, before whole ones.
    * ``lazy_rows``: rows for ops that run again come in where a plan is over the limit, not all at once.
    * ``dropped_carries``: the first model of plans does not carry dominated values from stage to stage.
    * ``widening``: where the gap stays wide, wider windows are tried, or none.
    * ``polish``: runs that the limit does not need are left out of the best plan.
    """

    last_uses: bool = True
    dominated_saves: bool = True
    carried_or_made: bool = True
    free_ops_run: bool = True
    reachable_rows: bool = True
    shared_sums: bool = True
    necessary_first: bool = True
    cuts_first: bool = True
    windows: bool = True
    lazy_rows: bool = True
    dropped_carries: bool = True
    widening: bool = True
    polish: bool = True

    def without(self, name: str) -> Levers:
        """All of these but one.

        Raises:
            ValueError: no lever has this name.
        """
        if name not in LEVERS:
            raise ValueError(f"no lever is called {name!r} (there is: {', '.join(LEVERS)})")
        return replace(self, **{name: False})


LEVERS = tuple(f.name for f in fields(Levers))
ALL = Levers()
