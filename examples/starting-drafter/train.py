"""Train the starting drafter on the conversations of `data.py`.

    python examples/starting-drafter/train.py --data data/ --out out/ --steps 4000

One conversation in twenty is held out for `report.py`.  Started again with the same `--out`, it goes on from
the state there, whatever data and settings that was made with.
"""

from __future__ import annotations

import argparse
import time
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from synthspec.dflash.batches import Document
from synthspec.dflash.checkpoint import load, save
from synthspec.dflash.config import tap_layers
from synthspec.dflash.features import extract
from synthspec.dflash.initial import from_target
from synthspec.dflash.model import Drafter
from synthspec.dflash.train import fit
from synthspec.files import content_id
from synthspec.samples.schema import read_rows
from synthspec.spec import Target as Settings
from synthspec.spec import Train
from synthspec.targets.load import load_target

HELD_OUT = 20  # one row in so many
MASK = 16  # <empty_output>, a token of SmolLM2's that stands in no chat


def is_held_out(row: dict[str, Any]) -> bool:
    return int(content_id(row["prompt"]), 16) % HELD_OUT == 0


def drop_some(drafter: Drafter, share: float) -> None:
    """Dropout on what each layer adds: a few thousand conversations are soon known by heart."""

    def drop(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return dropout(output, share)

    for layer in drafter.layers:
        layer.self_attn.register_forward_hook(drop)
        layer.mlp.register_forward_hook(drop)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the starting drafter.")
    parser.add_argument("--data", type=Path, required=True, help="folder of conversations")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--start", type=Path, help="a drafter to go on from; else the target's last layers")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.1)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = load_target(Settings()).model
    rows = [row for row in read_rows(args.data) if not is_held_out(row)]
    texts = [row["prompt_ids"] + row["answer_ids"] for row in rows]
    # The target wrote the requests too, so they are supervised as well; the beginning, the same in all, is not.
    columns = zip(*(row["prompt_ids"] for row in rows), strict=False)
    begin = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    documents = [Document(torch.tensor(ids), torch.arange(len(ids)) >= begin) for ids in texts]
    taps = tap_layers(len(model.layers), 5)
    started = time.time()
    features = extract(model, texts, taps, args.out / "features.bin", soft=range(len(texts)))
    print(
        f"{len(texts)} documents, {features.starts[-1]} tokens read, {time.time() - started:.0f} s", flush=True
    )
    if args.start:
        drafter = load(args.start)
    else:
        drafter = from_target(model, layers=3, taps=taps, block_size=8, mask_token_id=MASK, text_ids=texts[:16])
    drafter = drafter.to(model.device)
    drop_some(drafter, args.dropout)
    settings = Train(
        steps=args.steps,
        batch_documents=8,
        anchors=20,
        learning_rate=args.learning_rate,
        loss_gamma=2.0,  # general text is hardly guessed further than three tokens
        checkpoint_every=100,
    )
    started = time.time()

    def keep(current: Drafter, step: int) -> None:
        save(current, args.out / "drafter")
        print(f"step {step}: {time.time() - started:.0f} s", flush=True)

    for entry in fit(drafter, model, documents, features, settings, args.out, seed=0, keep=keep):
        print(entry)


if __name__ == "__main__":
    main()
