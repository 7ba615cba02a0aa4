"""How a command ends: its exit codes, and the error for an argument that cannot be followed."""

from __future__ import annotations

DONE, GRADIENTS_DIFFER, WRONG_ARGUMENT, INFEASIBLE, NO_PLAN, INTERRUPTED, CUT_OFF = 0, 1, 2, 3, 4, 130, 141


class WrongArgument(Exception):
    """What was typed cannot be done; the message is for the person who typed it."""
