"""Measure the starting drafter by real speculative decoding; writes report.json beside it.

    python examples/starting-drafter/report.py --data data/

Sets: conversations that `train.py` held out, and the desk's own chat and maths prompts, which people wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from synthspec.acceptance.compare import bootstrap
from synthspec.acceptance.trace import totals
from synthspec.dflash.checkpoint import load
from synthspec.dflash.decode import SpeculativeAsk, decode
from synthspec.files import write_json
from synthspec.samples.schema import read_rows
from synthspec.spec import Target as Settings
from synthspec.targets.load import LoadedTarget, load_target

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from train import is_held_out  # noqa: E402

PROMPTS = HERE.parent / "desk" / "prompts"


def asked(target: LoadedTarget, path: Path) -> list[list[int]]:
    """Token ids of the prompts of a JSON-lines file."""
    prompts = [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()]
    return [
        target.tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
        )
        for prompt in prompts
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the starting drafter.")
    parser.add_argument("--data", type=Path, required=True, help="folder of conversations")
    parser.add_argument("--drafter", type=Path, default=HERE)
    parser.add_argument("--most", type=int, default=96, help="new tokens of an answer")
    args = parser.parse_args()
    target = load_target(Settings())
    drafter = load(args.drafter, target.model.dtype).to(target.model.device)
    sets = {
        "heldout_conversations": [row["prompt_ids"] for row in read_rows(args.data) if is_held_out(row)][:96],
        "general_chat": asked(target, PROMPTS / "general_chat.jsonl"),
        "maths": asked(target, PROMPTS / "maths.jsonl"),
    }
    report: dict[str, Any] = {"target": target.description, "max_new_tokens": args.most, "sets": []}
    for name, prompts in sets.items():
        traces = []
        for first in range(0, len(prompts), 48):
            asks = [SpeculativeAsk(ids, args.most) for ids in prompts[first : first + 48]]
            traces += decode(target.model, drafter, asks, stop_ids=target.stop_ids)
        found = bootstrap(*totals(traces))
        steps = [n for trace in traces for n in trace.accepted]
        report["sets"].append(
            {
                "name": name,
                "requests": len(traces),
                "accept_len": found.value,
                "ci95": [found.low, found.high],
                "by_position": [
                    sum(n >= k for n in steps) / len(steps) for k in range(1, drafter.config.block_size)
                ],
            }
        )
        print(f"{name}: {found.value:.3f} ({found.low:.3f} to {found.high:.3f}), {len(traces)} requests")
    write_json(args.drafter / "report.json", report)


if __name__ == "__main__":
    main()
