"""Train the starting drafter on the conversations of `data.py`."""

from __future__ import annotations

import argparse
import time
from itertools import takewhile
from pathlib import Path

import pyarrow.parquet as pq
import torch
from transformers import AutoModelForCausalLM

from synthspec.dflash.batches import Document
from synthspec.dflash.checkpoint import load, save
from synthspec.dflash.features import extract
from synthspec.dflash.initial import from_target, tap_layers
from synthspec.dflash.train import fit
from synthspec.spec import Train
from synthspec.targets.causal import CausalModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--start", type=Path, help="a drafter to go on from")
    parser.add_argument("--anchors", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    args = parser.parse_args()
    model = CausalModel(AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16))
    rows = [row for path in sorted(args.data.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    texts = [row["prompt_ids"] + row["answer_ids"] for row in rows]
    # The target wrote the requests too, so they are supervised as well; only the fixed beginning is not.
    columns = zip(*(row["prompt_ids"] for row in rows), strict=False)
    begin = sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
    documents = [Document(torch.tensor(ids), torch.arange(len(ids)) >= begin) for ids in texts]
    taps = tap_layers(len(model.layers), 5)
    started = time.time()
    features = extract(model, texts, taps, args.out / "features.bin")
    print(
        f"{len(texts)} documents, {features.starts[-1]} tokens, features in {time.time() - started:.0f} s",
        flush=True,
    )
    if args.start:
        drafter = load(args.start)
    else:
        drafter = from_target(model, layers=3, taps=taps, block_size=8, mask_token_id=16, text_ids=texts[:16])
    settings = Train(
        steps=args.steps,
        batch_documents=8,
        anchors=args.anchors,
        learning_rate=args.learning_rate,
        checkpoint_every=100,
    )
    started = time.time()

    def keep(drafter, step):
        save(drafter, args.out / "drafter")
        print(f"step {step}: {time.time() - started:.0f} s", flush=True)

    log = fit(drafter, model, documents, features, settings, args.out, seed=0, keep=keep)
    print(log[-1])


if __name__ == "__main__":
    main()
