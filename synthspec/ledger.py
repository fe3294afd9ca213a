"""What became of every row: each stage's rows, counted by the one state that each of them ended in."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

STATES = (
    "kept",
    "heldout",
    "truncated",
    "invalid",
    "refused",
    "unmatched",
    "surplus",  # over its quota
    "duplicate",
    "contaminated",
    "degenerate",
    "unplayed",  # a turn of the target that its earlier one did not lead to
    "error",
)

Rows = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Counts:
    """The rows that entered one stage, by the state in which they left it.

    Args:
        unit: what a row is: prompt, match, request, completion, sample, step, drafter, page.
        requested: rows that entered.
        kept: rows that go on.
        dropped: rows of every other state that occurred; `heldout` rows are kept too, but apart.

    Raises:
        AssertionError: the numbers do not add up, or a state is not one of `STATES`.
    """

    unit: str
    requested: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        strange = sorted(set(self.dropped) - set(STATES[1:]))
        assert not strange, f"not a state of a {self.unit}: {', '.join(strange)}"
        assert min(self.requested, self.kept, *self.dropped.values()) >= 0, "a count is below zero"
        total = self.kept + sum(self.dropped.values())
        assert total == self.requested, f"{self.requested} {self.unit}s entered but {total} left"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def count(unit: str, states: Iterable[str]) -> Counts:
    """Count rows by state; `states` names each row's state once, in any order."""
    found = Counter(states)
    kept = found.pop("kept", 0)
    dropped = {state: found.pop(state) for state in STATES if state in found}
    return Counts(unit, kept + sum(dropped.values()) + sum(found.values()), kept, {**dropped, **found})


class StageCounts(BaseModel):
    """One stage's line in ledger.json."""

    model_config = ConfigDict(extra="forbid")

    unit: str = Field(description="what a row of this stage is")
    requested: Rows = Field(description="rows that entered the stage")
    kept: Rows = Field(description="rows that go on to the next stage")
    dropped: dict[str, Rows] = Field(description="every other row, by the state in which it left")

    @model_validator(mode="after")
    def _adds_up(self) -> StageCounts:
        if self.kept + sum(self.dropped.values()) != self.requested:
            raise ValueError("kept and dropped do not add up to requested")
        return self


class Ledger(BaseModel):
    """ledger.json: what became of every row, stage by stage."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    stages: dict[str, StageCounts] = {}


def tallied(pairs: Iterable[tuple[str, str | None]]) -> dict[str, dict[str, int]]:
    """How often each second stands behind each first, `largest` only; pairs without a second are left out."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for first, second in pairs:
        if second is not None:
            counts[first][second] += 1
    return {first: largest(found) for first, found in counts.items()}


def largest(counts: Mapping[str, int], most: int = 12) -> dict[str, int]:
    """The largest counts, in order, and the sum of what is left as `(others)`."""
    ordered = sorted((-n, name) for name, n in counts.items() if n)
    found = {name: -n for n, name in ordered[:most]}
    others = -sum(n for n, _ in ordered[most:])
    return found | ({"(others)": others} if others else {})
