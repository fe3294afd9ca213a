"""The train stage: from a training set and a starting drafter to the drafter that the gate will judge."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from synthspec.dflash import ranks
from synthspec.dflash.batches import Document, Windowed, windowed
from synthspec.dflash.checkpoint import WEIGHTS, check_fits, check_mask, find, load, save
from synthspec.dflash.features import Features, Online, Reader, extract, size_in_bytes
from synthspec.dflash.model import Drafter
from synthspec.dflash.objectives import foreseen_as
from synthspec.dflash.state import STATE
from synthspec.dflash.train import fit
from synthspec.errors import UserError
from synthspec.files import write_json
from synthspec.samples.schema import SPAN_KINDS, read_rows
from synthspec.spec import SpanWeights, Train
from synthspec.targets.load import LoadedTarget

Row = dict[str, Any]
FEATURES = "features.bin"


def load_start(settings: Train, target: LoadedTarget, root: Path | None = None) -> Drafter:
    """The starting drafter in float32, refused when it belongs to another target.

    Args:
        root: what a relative `train.start` is relative to.
    """
    folder = find(settings.start, root)
    drafter = load(folder)
    about = target.description
    check_fits(
        drafter.config,
        folder,
        hidden_size=about["hidden_size"],
        layers=about["layers"],
        vocabulary=about["vocab_size"],
        target=about,
    )
    check_mask(drafter.config, folder, target.tokenizer, target.stop_ids)
    drafter.config = replace(drafter.config, num_target_layers=about["layers"])
    return drafter


def read_documents(
    rows: Sequence[Row],
    path: Path,
    mask_token_id: int,
    vocabulary: int | None = None,
    span_weights: SpanWeights | None = None,
) -> list[Document]:
    """Samples as training reads them.

    Args:
        rows: of `samples.schema.SAMPLES`.
        path: where they are from, for messages.
        vocabulary: how many tokens the target has.
        span_weights: how much a token weighs by what it is; by default all weigh the same.

    Raises:
        UserError: there are none, one has an all-zero or all-one loss mask, one that is not as long as the
            text, a token that the target does not have, or no two supervised tokens in a row; the mask token
            is a token that the target really writes; a supervised token is in no span, or all that a row
            supervises weighs nothing.
    """
    if not rows:
        raise UserError(f"{path} holds no samples: look at ledger.json for where they went")
    documents = []
    for number, row in enumerate(rows):
        where = f"{path}, row {number} ({row['id']})"
        ids, mask = torch.tensor(row["input_ids"]), torch.tensor(row["loss_mask"], dtype=torch.bool)
        if len(ids) != len(mask):
            raise UserError(
                f"{where}: loss_mask is of {len(mask)} tokens and input_ids of {len(ids)}: both must say "
                "something of each token"
            )
        if not mask.any() or mask.all():
            which = "nothing" if not mask.any() else "everything"
            raise UserError(f"{where}: the loss mask supervises {which}")
        if mask_token_id in row["input_ids"]:
            raise UserError(
                f"{where}: the drafter's mask_token_id {mask_token_id} is a token of the text; a mask must be "
                "a token that is never written"
            )
        if vocabulary is not None and not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
            wrong = int(ids.min()) if ids.min() < 0 else int(ids.max())
            raise UserError(
                f"{where}: the target has no token {wrong}, its vocabulary ends at {vocabulary - 1}: the row "
                "was written with another tokenizer; make the set again with this target"
            )
        weights = None
        if span_weights is not None and span_weights != SpanWeights():
            weights = _weights(row, where, mask, span_weights)
        document = Document(ids, mask, weights)
        if not len(document.anchors()):
            raise UserError(
                f"{where}: no supervised token has another behind it, so there is nothing to guess: leave the "
                "row out"
            )
        documents.append(document)
    return documents


def _weights(row: Row, where: str, mask: torch.Tensor, span_weights: SpanWeights) -> torch.Tensor:
    """float32 [tokens]: what each token weighs by the span that it lies in; 1 outside of all."""
    weights = torch.ones(len(mask))
    covered = ~mask
    for span in row["spans"] or ():
        if span["kind"] not in SPAN_KINDS or not 0 <= span["start"] < span["end"] <= len(mask):
            raise UserError(
                f"{where}: the span {span} is of no known kind ({', '.join(SPAN_KINDS)}) or reaches beyond the "
                f"row's {len(mask)} tokens: correct it"
            )
        weights[span["start"] : span["end"]] = getattr(span_weights, span["kind"])
        covered[span["start"] : span["end"]] = True
    if not covered.all():
        raise UserError(
            f"{where}: token {int((~covered).nonzero()[0])} is supervised and in no span, so "
            "train.span_weights cannot say what it weighs: give it a span, or leave span_weights out"
        )
    if not (weights * mask).any():
        raise UserError(
            f"{where}: with train.span_weights nothing of this row weighs anything: raise one of them, or "
            "leave such rows out"
        )
    return weights


def check_target(rows: Sequence[Row], path: Path, fingerprint: str) -> None:
    """Refuse rows that another target wrote, since a drafter learns one target with one tokenizer.

    Args:
        fingerprint: of the target that is trained for; it covers model, revision, weights and tokenizer.
    """
    targets = {row["lineage"]["target"] for row in rows}
    if len(targets) > 1:
        raise UserError(
            f"{path} mixes the answers of {len(targets)} targets ({', '.join(sorted(targets))}), which need "
            f"not have one tokenizer: keep the rows whose lineage.target is {fingerprint}, the spec's, or "
            "generate the set again"
        )
    if targets - {fingerprint}:
        raise UserError(
            f"{path} was answered by another target ({', '.join(sorted(targets))}) than the spec's "
            f"({fingerprint}): generate it again, or set target back to what it was"
        )


def between(start: Drafter, trained: Drafter, share: float) -> Drafter:
    """A drafter whose weights are `start + share · (trained − start)`.

    Such weights forget much less than the trained ones, and learn hardly less (WiSE-FT, Wortsman et al. 2022).
    """
    found = copy.deepcopy(trained)
    with torch.no_grad():
        for weight, old in zip(found.parameters(), start.parameters(), strict=True):
            weight.lerp_(old, 1 - share)
    return found


def midtrain(
    trainset: Path,
    target: LoadedTarget,
    settings: Train,
    out: Path,
    seed: int,
    *,
    root: Path | None = None,
    evaluate: Callable[[Drafter], Row] | None = None,
    choose: Callable[[Sequence[Row]], int] = lambda log: int(log[-1]["step"]),
    stop: Callable[[Sequence[Row]], str | None] = lambda log: None,
    tick: Callable[[int, int], None] = lambda n, tokens: None,
    told: Callable[[int, dict[str, float]], None] | None = None,
    reading: Callable[[int], None] = lambda n: None,
    reader: Callable[[Sequence[int]], Reader] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Row:
    """Mid-train the starting drafter on a training set and keep its best checkpoint.

    Measured acceptance chooses it, never the loss.  Killed and started again, training goes on from its
    last checkpoint.  On several ranks all must call; rank 0 writes.

    Args:
        trainset: `train.parquet`, rows of `samples.schema.SAMPLES`.
        out: gets `final/`, the chosen drafter, and `log.json`.
        evaluate: measures a drafter in the target's dtype on requests of its own, as
            `acceptance.measure.on_the_way` does; called at each checkpoint.
        choose: the step to keep, from the log that `train.fit` gives; by default the last.
        stop, tick, told: as in `train.fit`.
        reading: called with the number of samples whose features have been read.
        reader: gives for the drafter's taps what reads them of documents that were held to a grammar; by
            default the target itself does.
        say: called with a line for the person.

    Returns:
        `steps` as `train.fit` logs them, `chosen_step`, and `windowed` (what `train.max_context` drops) if it
        is set.

    Raises:
        UserError: as `read_documents`, `check_target`, `load_start` and `train.fit`, `the drafter's
            rotary embedding does not fit the texts, or the features are more than `settings.features_limit_gb`.
        Stopped: the disk is full.
    """
    done = out / "log.json"
    made = [done, *(out / "final" / name for name in ("config.json", WEIGHTS))]
    ranks.together(lambda: ranks.check_device(target.model.device))
    if not ranks.tell(all(path.is_file() for path in made)):
        prepared = ranks.together(
            lambda: _prepare(trainset, target, settings, root, reader, evaluate is not None)
        )
        ranks.on_first(lambda: _tell(prepared, settings, say))
        features = _features(prepared, target, settings, out, reading, say)
        _train(prepared, features, target, settings, out, seed, evaluate, choose, stop, tick, told)

    def clear() -> None:
        for path in (out / FEATURES, out / STATE):
            path.unlink(missing_ok=True)
        for folder in out.glob("step-*"):
            shutil.rmtree(folder)

    ranks.on_first(clear)
    result: Row = json.loads(done.read_text(encoding="utf-8"))
    return result


@dataclass(frozen=True)
class _Prepared:
    """What is trained on what.

    Args:
        start: the starting drafter, on the target's device.
        texts: token ids of each document.
        free: the documents that were not held to a grammar, where the objective wants what the target foresaw.
        read: reads the features of the others, if it is not the target.
        windowed: what `train.max_context` drops, where it is set.
    """

    start: Drafter
    documents: list[Document]
    texts: list[list[int]]
    free: set[int]
    read: Reader | None
    windowed: Windowed | None


def _prepare(
    trainset: Path,
    target: LoadedTarget,
    settings: Train,
    root: Path | None,
    reader: Callable[[Sequence[int]], Reader] | None,
    measured: bool,
) -> _Prepared:
    rows = read_rows(trainset)
    start = load_start(settings, target, root)
    config = start.config
    documents = read_documents(rows, trainset, config.mask_token_id, config.vocab_size, settings.span_weights)
    check_target(rows, trainset, target.fingerprint)
    _check_rotary(documents, start, settings)
    dropped = None if settings.max_context is None else windowed(documents, settings.max_context)
    if measured and target.model.recurrent:  # told before the features are read, not at the first checkpoint
        target.model.new_cache(0)
    read = reader(config.target_layer_ids) if reader else None
    # Under a constraint the target's choice is the engine's too; elsewhere all that it weighed is its own.
    wanted = foreseen_as(settings.objective)
    free = {number for number, row in enumerate(rows) if wanted and not row["held"]}
    texts = [row["input_ids"] for row in rows]
    return _Prepared(start.to(target.model.device), documents, texts, free, read, dropped)


def _check_rotary(documents: Sequence[Document], drafter: Drafter, settings: Train) -> None:
    """Refuse to train `longrope`, which turns otherwise in long texts, where serving would differ.

    A batch has one kind of factors for all its texts, and a part of a text counts from its own beginning.
    """
    rope, longest = drafter.config.rope_parameters, max(len(document.ids) for document in documents)
    if rope["rope_type"] != "longrope":
        return
    if settings.max_context is not None:
        raise UserError(
            "train.max_context: the drafter's rotary embedding (longrope) changes with the length of the text, "
            "so it cannot be trained on a part of one: leave max_context out"
        )
    end = int(rope["original_max_position_embeddings"]) - drafter.config.block_size
    if longest > end:
        raise UserError(
            f"train.start: the drafter's rotary embedding (longrope) is another one for texts of more than "
            f"{end} tokens, and the longest sample has {longest}: leave longer samples out, or start from a "
            "drafter without it"
        )


def _tell(prepared: _Prepared, settings: Train, say: Callable[[str], None]) -> None:
    """Say what `train.max_context` drops."""
    found = prepared.windowed
    if found and found.documents:
        say(
            f"  {found.documents:,} of {len(prepared.documents):,} samples are longer than train.max_context: "
            f"blocks look at the {settings.max_context:,} tokens before them only, which drops "
            f"{found.dropped / max(found.context, 1):.0%} of all context"
        )


def _features(
    prepared: _Prepared,
    target: LoadedTarget,
    settings: Train,
    out: Path,
    reading: Callable[[int], None],
    say: Callable[[str], None],
) -> Features | Online:
    """The target's features, kept on disk or read when they are wanted.

    Raises:
        UserError: they are more than the person wants to keep.
        Stopped: the disk has too little room.
    """
    taps, texts, free = prepared.start.config.target_layer_ids, prepared.texts, prepared.free
    form = foreseen_as(settings.objective) or "expected"
    if settings.features_cache == "none":
        reading(len(texts))
        return Online(target.model, texts, taps, free, form)
    path, dtype = out / FEATURES, getattr(torch, settings.features_cache)
    tokens, hidden = sum(map(len, texts)), target.model.config.hidden_size
    soft = sum(len(texts[number]) for number in free)
    need = size_in_bytes(tokens, len(taps), hidden, soft=soft, dtype=dtype) / 1e9

    def check() -> None:
        if need > settings.features_limit_gb:
            raise UserError(
                f"train.features_limit_gb: the features of {tokens:,} tokens need {need:,.3g} GB at {path}, "
                f"more than {settings.features_limit_gb:g}: raise it, train on fewer rows, or set "
                "train.features_cache to none, and the target reads each step's samples anew"
            )
        say(f"  features of {tokens:,} tokens, {len(taps)} layers of {hidden}: {need:,.3g} GB at {path}")

    ranks.on_first(check)
    read = prepared.read
    return extract(target.model, texts, taps, path, reading, soft=free, form=form, read=read, dtype=dtype)


def _train(
    prepared: _Prepared,
    features: Features | Online,
    target: LoadedTarget,
    settings: Train,
    out: Path,
    seed: int,
    evaluate: Callable[[Drafter], Row] | None,
    choose: Callable[[Sequence[Row]], int],
    stop: Callable[[Sequence[Row]], str | None],
    tick: Callable[[int, int], None],
    told: Callable[[int, dict[str, float]], None] | None,
) -> None:
    """Train, choose, and write `final/`; `log.json` is written last and says that all is there."""
    model, drafter = target.model, prepared.start
    # Others than rank 0 never look back.
    start = copy.deepcopy(drafter) if ranks.rank() == 0 else drafter

    def served(current: Drafter) -> Row:
        assert evaluate is not None
        return evaluate(between(start, current, settings.interpolation).to(model.dtype))

    def keep(current: Drafter, step: int) -> None:
        save(between(start, current, settings.interpolation), out / f"step-{step:06}")

    log = fit(
        drafter,
        model,
        prepared.documents,
        features,
        settings,
        out,
        seed,
        evaluate=served if evaluate else None,
        keep=keep,
        stop=stop,
        tick=tick,
        told=told,
    )

    def finish() -> None:
        chosen = choose(log)
        save(load(out / f"step-{chosen:06}"), out / "final")
        dropped = {"windowed": asdict(prepared.windowed)} if prepared.windowed else {}
        write_json(out / "log.json", {"version": 1, "steps": log, "chosen_step": chosen, **dropped})

    ranks.on_first(finish)
