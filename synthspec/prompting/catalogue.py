"""Which tools of a large catalogue a request shows: the one it needs, and others that are like it."""

from __future__ import annotations

import random
from functools import cached_property

import numpy as np

from synthspec.grammar.model import Grammar, Tool
from synthspec.prompting.match import nearness, texts

_NEAR = 0.5  # of the other tools, the share that is drawn from the nearest
_POOL = 3  # times as many near tools as are needed, so that requests for one tool differ


class Shelf:
    """The tools of one grammar, and which of them lie near each other."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._places = {tool.name: place for place, tool in enumerate(grammar.tools)}

    @cached_property
    def _neighbours(self) -> list[list[int]]:
        """For each tool the others, nearest first."""
        described = texts(self._grammar)
        scores = nearness([" ".join(parts) for parts in described], described)
        order = np.argsort(-scores, axis=1, kind="stable").tolist()
        return [[other for other in row if other != place] for place, row in enumerate(order)]

    def shown(self, tool: str | None, dice: random.Random) -> list[Tool]:
        """The tools that one request shows; all of them where the grammar has no catalogue.

        Args:
            tool: the tool that the prompt was matched to; None: any.
        """
        tools, catalogue = self._grammar.tools, self._grammar.catalogue
        if catalogue is None:
            return tools
        count = min(dice.randint(*catalogue.shown), len(tools))
        needed = self._places[tool] if tool else dice.randrange(len(tools))
        # What the target must be able to call in its earlier turns is there too.
        called = (name for turn in self._grammar.played for name in turn.tools or ())
        always = [*dict.fromkeys([needed, *(self._places[name] for name in called)])]
        count = max(count, len(always))
        others = [place for place in self._neighbours[needed] if place not in always]
        near = others[: _POOL * count]
        chosen = dice.sample(near, min(round(_NEAR * (count - len(always))), len(near)))
        rest = sorted(set(others) - set(chosen))
        chosen += [*always, *dice.sample(rest, count - len(always) - len(chosen))]
        if catalogue.order == "random":
            dice.shuffle(chosen)
        else:
            chosen.sort()
        return [tools[place] for place in chosen]
