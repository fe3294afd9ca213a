"""Which checkpoint is kept, and when no better one will come: measured acceptance decides, never the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from synthspec.acceptance.compare import Estimate, paired_bootstrap

Row = dict[str, Any]
FEWEST = 5  # general requests whose interval says anything


def choose(log: Sequence[Row]) -> int:
    """The step to keep: the best on trained grammars, the later of equals, of those that kept what they knew.

    One has lost general acceptance when the whole 95% interval of the paired difference from step 0 is
    below 0: these few requests can say no more, and the gate asks others.  Where every checkpoint has
    lost, the one that lost least.  Without measurements, the last.
    """
    steps = [entry for entry in log[1:] if "counts" in entry]
    if not steps:
        return int(log[-1]["step"])
    general = {int(entry["step"]): _general_change(log[0], entry) for entry in steps}
    kept = [entry for entry in steps if general[entry["step"]].high >= 0]
    if kept:
        return int(
            max(kept, key=lambda entry: (entry["accept_len"].get("in_domain", 0.0), entry["step"]))["step"]
        )
    return max(general, key=lambda step: general[step].value)


def drifted(log: Sequence[Row], drop: float, times: int) -> str | None:
    """Why training shall end, if general acceptance has been lost for good.

    Args:
        log: the entry of step 0 and one a checkpoint.
        drop: what may be lost, in tokens a verification step.
        times: so many last checkpoints must each have lost more, with the whole 95% interval of the paired
            difference from step 0.
    """
    last = [entry for entry in log[1:] if "counts" in entry][-times:]
    changes = [_general_change(log[0], entry) for entry in last]
    if len(changes) < times or any(change.high >= -drop for change in changes):
        return None
    worst = changes[-1]
    return (
        f"general acceptance fell by more than {drop:g} at {times} checkpoints in a row, at the last by "
        f"{-worst.value:.2f} ({-worst.high:.2f} to {-worst.low:.2f})"
    )


def _general_change(start: Row, entry: Row) -> Estimate:
    """How general acceptance changed from step 0 to a checkpoint; by nothing where too few requests say so."""
    if len(start["counts"].get("general", {}).get("steps", ())) < FEWEST:
        return Estimate(0.0, 0.0, 0.0, 0)
    before, after = (each["counts"]["general"] for each in (start, entry))
    return paired_bootstrap(before["accepted"], before["steps"], after["accepted"], after["steps"])
