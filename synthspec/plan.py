"""Plan: what is wrong with a spec, or what a run of it will do, and how big that is."""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from synthspec import progress
from synthspec.errors import UserError
from synthspec.grammar.examples import parts
from synthspec.grammar.slots import Asked, asked_slots
from synthspec.ledger import tallied
from synthspec.run import Run, open_run
from synthspec.spec import Spec
from synthspec.stages import facts
from synthspec.stages.execute import first_difference, is_done
from synthspec.stages.table import NAMES

Row = dict[str, Any]

# Shares of the speed of a plain matrix product that the work reaches, measured on two cores with the
# embedded target; on another machine they are right to a factor of two or so.
PREFILL, DECODE, VERIFY, TRAINING = 0.5, 0.1, 0.1, 0.3
LENGTH_SHARE = 0.6  # of max_new_tokens that an answer under a grammar takes
GUESSED_PROMPT_TOKENS = 300  # where prompts are not read yet
GUESSED_ANSWER_TOKENS = 40  # of a tool, or of the user behind an answer


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Args:
        run, folder: its name and folder.
        target: as `targets.load.describe_target`.
        tools_travel: how the target learns of its tools.
        grammars: name, kind, whether it is held out, requests, and how many of them are near to each tool.
        sources: name, where it is, licence, and prompts (None where the source was not read).
        requests: by purpose.
        prompt_tokens, completion_tokens: of all requests; the second is a guess.
        disk_bytes, disk_free_bytes: what the run folder will hold; what is free.
        minutes: by stage, for the stages that take long, without what is done already.
        done: stages that are done.
        notes: what a person should know besides.
    """

    run: str
    folder: str
    target: Row
    tools_travel: str
    grammars: list[Row]
    sources: list[Row]
    requests: dict[str, int]
    prompt_tokens: int
    completion_tokens: int
    disk_bytes: int
    disk_free_bytes: int
    minutes: dict[str, float]
    done: list[str]
    notes: list[str]

    def as_json(self) -> Row:
        return asdict(self)


def make_plan(path: Path, runs: Path | None = None) -> Plan:
    """Check everything that a run needs, and estimate it; nothing is written.

    Raises:
        UserError: everything that is wrong, one line each.
    """
    run = open_run(path, runs)
    spec = run.spec
    grammars, target, drafter, tokenizer = _inputs(run)
    if changed := first_difference(run):
        raise UserError(changed)
    notes: list[str] = []
    with progress.bar("reading the prompts", None, "prompts") as tick:
        prompts = _pull(run, tick)
    unread = [source.name for source in spec.prompts if source.dataset]
    if not unread:
        if not prompts:
            raise UserError("prompts: no source holds a prompt that can be read: look into their files")
        requests = _requests(run, prompts, grammars, tokenizer)
    else:
        notes.append(f"plan does not read hub datasets ({', '.join(unread)}): it takes every quota as filled")
        requests = _guessed(run, grammars)
    notes += _shortfalls(run, requests, [grammar.name for grammar in grammars])
    notes += _unshown_tools(grammars)
    notes += _rare_tools(grammars, requests)
    notes += _thinking(spec.generate.thinking, tokenizer)
    notes += _whole_conversations(spec, grammars)
    requests = [more for row in requests for more in _with_later_turns(row, grammars)]
    by_grammar = Counter(row["grammar"] for row in requests)
    by_tool = tallied((row["grammar"], row.get("tool")) for row in requests)
    by_purpose = Counter(row["purpose"] for row in requests)
    done = [name for name in NAMES if is_done(run, name)]
    sizes = _sizes(run, requests, asked_slots(grammars))
    with progress.bar("measuring this machine", None, ""):
        minutes = _minutes(run, target, drafter, sizes, _products_per_second(target["device"], target["dtype"]))
    disk = _disk(run, drafter, sizes)
    free = shutil.disk_usage(_existing_parent(run.folder)).free
    if disk > free:
        raise UserError(
            f"the run needs about {disk / 1e9:.1f} GB and {free / 1e9:.1f} GB are free at {run.folder}: "
            "free some space, or give another folder with --runs"
        )
    return Plan(
        run=run.name,
        folder=str(run.folder),
        target=target,
        tools_travel=_tools_travel(grammars, tokenizer),
        grammars=[
            {
                "name": grammar.name,
                "kind": grammar.kind,
                "held_out": grammar.name in spec.holdout.grammars,
                "requests": by_grammar[grammar.name],
                "tools": by_tool.get(grammar.name, {}),
            }
            for grammar in grammars
        ],
        sources=[
            {
                "name": source.name,
                "from": source.dataset or source.package or ", ".join(source.files),
                "licence": source.licence,
                "prompts": None
                if source.dataset
                else sum(row["source"] == source.name for row in prompts or []),
            }
            for source in spec.prompts
        ],
        requests=dict(by_purpose),
        prompt_tokens=sizes["prompt"],
        completion_tokens=sizes["completion"],
        disk_bytes=disk,
        disk_free_bytes=free,
        minutes={name: value for name, value in minutes.items() if name not in done},
        done=done,
        notes=notes,
    )


def _inputs(run: Run) -> tuple[list[Any], Row, Any, Any]:
    """Grammars, facts of the target, the starting drafter's config and the tokenizer, all checked.

    Raises:
        UserError: everything that is wrong with any of them, one line each.
    """
    mistakes: list[str] = []

    def tried(check: Callable[[], Any]) -> Any:
        try:
            return check()
        except UserError as error:
            mistakes.append(str(error))
            return None

    grammars = tried(lambda: facts.project_grammars(run.spec, run.root))
    for source in run.spec.prompts:
        for label, file in (tried(partial(facts.source_files, source, run.root)) or {}).items():
            if not file.is_file():
                mistakes.append(f"prompts: {source.name}: there is no file {label}: correct the name")
    tried(lambda: facts.keys(run))
    target = tried(lambda: facts.fitting_target(run))
    drafter = tried(lambda: facts.fitting_start(run, target)) if target else None
    tokenizer = tried(lambda: facts.tokenizer_of(run)) if target else None
    if mistakes:
        raise UserError("\n".join(mistakes))
    return grammars, target, drafter, tokenizer


def _pull(run: Run, tick: progress.Tick) -> list[Row]:
    from synthspec.prompting.pull import pull

    seen: set[str] = set()
    return [
        row
        for source in run.spec.prompts
        if not source.dataset
        for row in pull(source, run.root, seen, tick)[0]
    ]


def _requests(run: Run, prompts: list[Row], grammars: list[Any], tokenizer: Any) -> list[Row]:
    """The requests as the stages match and render will make them, each with the tool it was matched to."""
    from synthspec.prompting.match import match
    from synthspec.prompting.render import render

    matches = match(prompts, grammars, run.spec)[0]
    tool_of = {row["id"]: row["tool"] for row in matches}
    requests = render(matches, prompts, grammars, tokenizer, run.spec)[0]
    return [{**row, "tool": tool_of[row["match_id"]]} for row in requests]


def _with_later_turns(row: Row, grammars: list[Any]) -> Iterator[Row]:
    """A request, and those that will follow its answer, whose length is guessed."""
    yield row
    played = next((len(grammar.played) for grammar in grammars if grammar.name == row["grammar"]), 0)
    for turn in range(1, 1 + played):
        answered = [0] * (turn * (row["max_new_tokens"] // 2 + GUESSED_ANSWER_TOKENS))
        yield {**row, "prompt_ids": [*row["prompt_ids"], *answered]}


def _guessed(run: Run, grammars: list[Any]) -> list[Row]:
    """As many requests as the quotas ask for, of a length that is merely likely."""
    from synthspec.prompting.match import quota, replay_samples

    spec = run.spec
    ids = [0] * GUESSED_PROMPT_TOKENS
    rows: list[Row] = []
    trained = 0
    for grammar in grammars:
        held = grammar.name in spec.holdout.grammars
        most = quota(spec, grammar)
        trained += 0 if held else most
        row = {"purpose": "grammar", "grammar": grammar.name, "max_new_tokens": grammar.max_new_tokens}
        rows += [{**row, "prompt_ids": ids}] * most * spec.generate.samples
    wanted = sum(replay_samples(spec, trained * (1 - spec.holdout.prompts)).values())
    row = {"purpose": "replay", "grammar": None, "max_new_tokens": spec.replay.max_new_tokens}
    rows += [{**row, "prompt_ids": ids}] * wanted * spec.generate.samples
    for ood in spec.ood:
        row = {"purpose": "ood", "grammar": None, "set": ood.name, "max_new_tokens": ood.max_new_tokens}
        rows += [{**row, "prompt_ids": ids}] * ood.requests
    return rows


def _shortfalls(run: Run, requests: list[Row], grammars: list[str]) -> list[str]:
    """Grammars that nothing will be trained on, and sets too small for the gate to say anything about."""
    holdout, least = run.spec.holdout, run.spec.gate.min_requests
    rows = Counter(row["grammar"] for row in requests)
    trained = [name for name in grammars if name not in holdout.grammars]
    notes = [
        f"no prompt goes to the grammar {name}, so nothing is trained on it: write what its prompts are about "
        "(match.about), or add a source with such prompts"
        for name in trained
        if not rows[name]
    ]
    # As the stage assemble splits; what it drops as repeats makes the sets smaller still.
    sets = {
        "heldout_prompts": sum(
            min(math.ceil(holdout.prompts * rows[name]), holdout.requests) for name in trained
        ),
        **{f"grammar_{name}": min(rows[name], holdout.requests) for name in holdout.grammars},
        **{ood.name: sum(row.get("set") == ood.name for row in requests) for ood in run.spec.ood},
    }
    small = ", ".join(f"{name} ({n})" for name, n in sets.items() if n < least)
    if small:
        notes.append(f"the gate wants {least} requests of a set (gate.min_requests); smaller are {small}")
    return notes


def _unshown_tools(grammars: list[Any]) -> list[str]:
    """Tools that no example of their grammar calls."""
    notes = []
    for grammar in grammars:
        if grammar.kind != "tool_call" or grammar.catalogue is not None:
            continue
        called = {call["name"] for example in grammar.examples for call in parts(example)[1]}
        missing = [tool.name for tool in grammar.tools if tool.name not in called]
        if missing:
            notes.append(f"no example of the grammar {grammar.name} calls {', '.join(missing)}")
    return notes


def _rare_tools(grammars: list[Any], requests: list[Row]) -> list[str]:
    """Tools that so few prompts are near to that the drafter will hardly see them."""
    by_tool = tallied((row["grammar"], row.get("tool")) for row in requests)
    notes = []
    for grammar in grammars:
        counts = by_tool.get(grammar.name, {})
        if grammar.catalogue is not None or len(grammar.tools) < 2 or not counts:
            continue
        fair = sum(counts.values()) / len(grammar.tools)
        rare = [f"{tool.name} ({counts.get(tool.name, 0)})" for tool in grammar.tools]
        rare = [
            name for name, tool in zip(rare, grammar.tools, strict=True) if counts.get(tool.name, 0) < fair / 2
        ]
        if rare:
            notes.append(
                f"few prompts are near to {', '.join(rare)} of the grammar {grammar.name}: write into "
                "match.about or the tool's description what they are about, or add a source"
            )
    return notes


def _whole_conversations(spec: Spec, grammars: list[Any]) -> list[str]:
    """All answers to a prompt are held out together, or none of them."""
    large = [
        grammar.name
        for grammar in grammars
        if grammar.name not in spec.holdout.grammars
        and (1 + len(grammar.played)) * spec.generate.samples > spec.holdout.requests
    ]
    if not large:
        return []
    return [
        f"a conversation has more answers than holdout.requests ({spec.holdout.requests}), so none is held "
        f"out of {', '.join(large)}: raise it"
    ]


def _thinking(asked: str, tokenizer: Any) -> list[str]:
    """Whether the target thinks as it does in production must be said where it can do either."""
    from synthspec.prompting.render import template_thinks

    if template_thinks(tokenizer) and asked == "template":
        return [
            "the target's chat template can have it think or not: say in generate.thinking what production "
            "does, since a drafter trained on the one guesses the other badly"
        ]
    if not template_thinks(tokenizer) and asked != "template":
        so = "it is held to think all the same" if asked == "on" else "that changes nothing"
        return [f"generate.thinking: {asked}, but the target's chat template has no such switch; {so}"]
    return []


def _tools_travel(grammars: list[Any], tokenizer: Any) -> str:
    """Whether the chat template shows the tools, found by rendering with and without them."""
    from synthspec.prompting.render import template_shows_tools

    tools = next((grammar.tools for grammar in grammars if grammar.tools), None)
    if tools is None:
        return "no grammar has tools"
    shown = [tool.model_dump(include={"name", "description", "parameters"}) for tool in tools]
    if template_shows_tools(tokenizer, shown):
        return "the target's chat template shows the tools"
    return "the target's chat template ignores tools, so the system prompt lists them"


def _sizes(run: Run, requests: list[Row], asked: list[tuple[Any, str, Asked]]) -> dict[str, int]:
    """Tokens of prompts and completions, of those measured, trained on (and of these, not held to a grammar),
    and decoded on the way; and how many documents are trained on.

    Args:
        asked: the slots that the target fills before it answers.
    """
    from synthspec.acceptance.measure import TOKENS_ON_THE_WAY
    from synthspec.samples.assemble import DEV_OF_GRAMMAR, DEV_OF_REPLAY

    spec = run.spec
    counted = ("prompt", "completion", "measured", "measured_prompt", "trained", "trained_free", "dev")
    sizes = dict.fromkeys(counted, 0)
    documents = 0.0
    dev = Counter[str | None]()
    for row in requests:
        share = LENGTH_SHARE if row["purpose"] == "grammar" else 1.0
        answer = round(row["max_new_tokens"] * share)
        sizes["prompt"] += len(row["prompt_ids"])
        sizes["completion"] += answer
        held = row["purpose"] == "ood" or row["grammar"] in spec.holdout.grammars
        measured = 1.0 if held else spec.holdout.prompts if row["purpose"] == "grammar" else 0.0
        sizes["measured"] += round(answer * measured)
        sizes["measured_prompt"] += round(len(row["prompt_ids"]) * measured)
        trained = round((answer + len(row["prompt_ids"])) * (1 - measured))
        sizes["trained"] += trained
        if row["purpose"] != "grammar" or spec.generate.decode == "free":
            sizes["trained_free"] += trained
        documents += 1 - measured
        if not held and dev[row["grammar"]] < (DEV_OF_GRAMMAR if row["grammar"] else DEV_OF_REPLAY):
            dev[row["grammar"]] += 1
            sizes["dev"] += min(answer, TOKENS_ON_THE_WAY)
    sizes["documents"] = max(1, round(documents))
    sizes["completion"] += sum(slot.values * slot.max_new_tokens for _, _, slot in asked)
    return sizes


def _products_per_second(device: str, dtype: str) -> float:
    """Floating-point operations a second of a plain matrix product here, in the best of some bursts."""
    import torch

    kind = getattr(torch, dtype)
    left, right = torch.randn(512, 576).to(device, kind), torch.randn(576, 1536).to(device, kind)
    left @ right
    rates = []
    for _ in range(5):
        done, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < 0.1:
            left @ right
            done += 1
        if device == "cuda":
            torch.cuda.synchronize()
        rates.append(done / (time.perf_counter() - begun))
    return 2 * 512 * 576 * 1536 * max(rates)


def _minutes(run: Run, target: Row, drafter: Any, sizes: dict[str, int], speed: float) -> dict[str, float]:
    """Minutes of the three long stages, from parameters × tokens."""
    from synthspec.dflash.objectives import foreseen_as

    a_token = 2 * target["parameters"]
    minutes: dict[str, float] = {}
    if run.spec.worker.kind == "transformers":
        seconds = sizes["prompt"] * a_token / (speed * PREFILL) + sizes["completion"] * a_token / (
            speed * DECODE
        )
        minutes["generate"] = seconds / 60
    settings = run.spec.train
    size = drafter.block_size
    documents = settings.batch_documents * settings.accumulate
    blocks = documents * settings.anchors
    head = drafter.hidden_size * drafter.vocab_size
    if foreseen_as(settings.objective) == "hidden" and sizes["trained"]:
        # Where there are two distributions to compare, that takes four times as long again.
        head = round(head * (1 + 4 * sizes["trained_free"] / sizes["trained"]))
    a_step = 6 * blocks * (size * drafter.num_hidden_layers * _of_a_layer(drafter) + (size - 1) * head)
    # Read once, or anew whenever a step wants them.
    readings = settings.steps * documents / sizes["documents"] if settings.features_cache == "none" else 1
    features = readings * sizes["trained"] * a_token / (speed * PREFILL)
    # A step that verifies reads a block to write one to `size` tokens.
    a_written = size / 2 * a_token / (speed * VERIFY)
    evaluations = 1 + math.ceil(settings.steps / settings.checkpoint_every)
    on_the_way = evaluations * sizes["dev"] * a_written
    minutes["train"] = (settings.steps * a_step / (speed * TRAINING) + features + on_the_way) / 60
    verified = 2 * sizes["measured"] * a_written
    prefilled = 2 * sizes["measured_prompt"] * a_token / (speed * PREFILL)
    minutes["measure"] = (verified + prefilled) / 60
    return {name: round(value, 1) for name, value in minutes.items()}


def _disk(run: Run, drafter: Any, sizes: dict[str, int]) -> int:
    """Bytes that the run folder holds at its largest: tables, features of training, optimizer state, the
    drafter after every so many steps, export."""
    import torch

    from synthspec.dflash.features import size_in_bytes
    from synthspec.dflash.objectives import foreseen_as

    settings = run.spec.train
    tables = 6 * (sizes["prompt"] + sizes["completion"])
    features = 0
    if settings.features_cache != "none":
        features = size_in_bytes(
            sizes["trained"],
            len(drafter.target_layer_ids),
            drafter.hidden_size,
            soft=sizes["trained_free"] if foreseen_as(settings.objective) else 0,
            dtype=getattr(torch, settings.features_cache),
        )
    wide = drafter.hidden_size**2 * len(drafter.target_layer_ids)
    parameters = drafter.num_hidden_layers * _of_a_layer(drafter) + wide
    checkpoints = math.ceil(settings.steps / settings.checkpoint_every)
    # The state, 12 bytes a parameter or with the mean of the weights 16, is written anew beside the old one.
    state = 16 if settings.ema else 12
    return int(tables + features + parameters * (2 * state + 2 * 4 + 2 * checkpoints))


def _of_a_layer(drafter: Any) -> int:
    """Parameters of one drafter layer, its norms aside."""
    attention = 2 * (drafter.num_attention_heads + drafter.num_key_value_heads) * drafter.head_dim
    return int(drafter.hidden_size * (attention + 3 * drafter.intermediate_size))


def _existing_parent(folder: Path) -> Path:
    return next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())


def table(plan: Plan) -> Any:
    """A plan for the terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from synthspec.runfolders import told_size

    lines = Table(box=None, show_header=False, pad_edge=False)
    lines.add_row("run", f"{plan.run}, in {plan.folder}")
    target = plan.target
    size = f"{target['parameters'] / 1e6:,.0f}M parameters, {told_size(target['bytes_needed'])} in memory"
    lines.add_row("target", f"{target['model']}, {size}, {target['dtype']}")
    lines.add_row("tools", plan.tools_travel)
    lines.add_row("requests", ", ".join(f"{n:,} {purpose}" for purpose, n in plan.requests.items()))
    tokens = f"{plan.prompt_tokens:,} of prompts, about {plan.completion_tokens:,} to write"
    lines.add_row("tokens", tokens)
    disk = f"about {told_size(plan.disk_bytes)} while training"
    lines.add_row("disk", f"{disk}; {told_size(plan.disk_free_bytes)} are free")
    if plan.minutes:
        total = sum(plan.minutes.values())
        parts = ", ".join(f"{name} {value:.1f}" for name, value in plan.minutes.items())
        lines.add_row("minutes", f"about {total:.0f} on this machine, measured just now ({parts})")
    lines.add_row("done", ", ".join(plan.done) or "nothing yet")
    sources = Table("prompts", "from", "licence", box=None, header_style="bold", pad_edge=False)
    sources.add_column("prompts", justify="right")
    for source in plan.sources:
        prompts = "not read" if source["prompts"] is None else f"{source['prompts']:,}"
        sources.add_row(source["name"], source["from"], source["licence"], prompts)
    grammars = Table("grammar", "kind", "used to", box=None, header_style="bold", pad_edge=False)
    grammars.add_column("requests", justify="right")
    grammars.add_column("by tool")
    for grammar in plan.grammars:
        use = "measure only" if grammar["held_out"] else "train and measure"
        tools = ", ".join(f"{n:,} {name}" for name, n in grammar["tools"].items())
        grammars.add_row(grammar["name"], grammar["kind"], use, f"{grammar['requests']:,}", tools)
    notes = [Text(f"note: {note}", style="yellow") for note in plan.notes]
    return Group(lines, Text(), sources, Text(), grammars, *([Text(), *notes] if notes else []))
