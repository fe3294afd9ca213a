"""General conversations for the starting drafter, written by the target alone.

The target is given the opening of a user's turn and writes the request itself (sampled), then answers
it (greedily).  No public prompt is needed, every answer is the target's own, and nothing of the demo's
grammars or test sets is in it.

    python examples/starting-drafter/data.py --out data/ --rows 4000

Started again with the same `--out`, it goes on behind the last file.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from synthspec.spec import Target as Settings
from synthspec.targets.generate import Ask, generate
from synthspec.targets.load import LoadedTarget, load_target

# The empty opening lets the target choose; the others make sure that these kinds are there.
OPENINGS = {
    "": 50,
    "Explain": 3,
    "How do I": 3,
    "What is": 4,
    "Why": 2,
    "Write a short story about": 2,
    "Write an email to": 2,
    "Write a poem about": 1,
    "Give me tips": 2,
    "Summarize": 1,
    "Compare": 1,
    "Describe": 2,
    "Recommend": 1,
    "Create a list of": 2,
    "Write a Python function that": 5,
    "Write a SQL query": 1,
    "Fix this code:": 1,
    "Tom has": 2,
    "A shop sells": 2,
    "A train travels": 1,
    "Calculate": 2,
    "If Sarah": 2,
    "There are": 2,
    "How many": 2,
    "Solve": 2,
    "Who": 1,
    "When": 1,
}


def conversations(target: LoadedTarget, count: int, seed: int, most: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each request of one batch of `count` openings that came to its end."""
    model, tokenizer, stop = target.model, target.tokenizer, target.stop_ids
    dice = random.Random(seed)
    openings = dice.choices(list(OPENINGS), list(OPENINGS.values()), k=count)
    before, after = tokenizer.apply_chat_template(
        [{"role": "user", "content": "\0"}], tokenize=False, add_generation_prompt=True
    ).split("\0")
    asks = [
        Ask(tokenizer(before + opening).input_ids, 72, temperature=0.8, seed=seed * 10_000 + row)
        for row, opening in enumerate(openings)
    ]
    seen, asked = set(), []
    for opening, written in zip(openings, generate(model, asks, stop_ids=stop), strict=True):
        text = (opening + tokenizer.decode(written.ids, skip_special_tokens=True)).strip()
        if written.finish_reason == "stop" and len(text.split()) > 3 and text not in seen:
            seen.add(text)
            asked.append((opening, text))
    prompts = [tokenizer(before + text + after).input_ids for _, text in asked]
    order = sorted(range(len(asked)), key=lambda i: len(prompts[i]))
    answers = generate(model, [Ask(prompts[i], most) for i in order], stop_ids=stop) if order else []
    for i, answer in zip(order, answers, strict=True):
        yield {
            "opening": asked[i][0],
            "prompt": asked[i][1],
            "prompt_ids": prompts[i],
            "answer_ids": answer.ids,
            "finish_reason": answer.finish_reason,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=112)
    parser.add_argument("--most", type=int, default=144)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    target = load_target(Settings())
    done = shard = 0
    while done < args.rows:
        path = args.out / f"{shard:04}.parquet"
        if not path.exists():
            rows = list(conversations(target, args.batch, shard, args.most))
            part = path.with_suffix(".part")
            pq.write_table(pa.Table.from_pylist(rows), part)
            part.rename(path)
        done += pq.read_metadata(path).num_rows
        shard += 1
        print(f"{path.name}: {done} rows", flush=True)


if __name__ == "__main__":
    main()
