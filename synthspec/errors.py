"""The three ways a command may fail; each is one plain sentence and an exit code."""

from __future__ import annotations


class SynthspecError(Exception):
    """A failure that is told in words, never as a traceback."""

    exit_code = 1


class UserError(SynthspecError):
    """Something a person wrote is wrong: says what, where, and what to do."""

    exit_code = 2


class GateRefused(SynthspecError):
    """The trained drafter may not ship."""

    exit_code = 3


class Stopped(SynthspecError):
    """Something outside gave way (disk, workers); the same command goes on later."""

    exit_code = 4
