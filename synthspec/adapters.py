"""Each stage's reading and writing in the run folder, around the plain function that does its work."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synthspec import progress
from synthspec.errors import UserError
from synthspec.files import content_id, write_json, write_text
from synthspec.ledger import Counts, count
from synthspec.run import Run
from synthspec.spec import PromptSource, Spec, Target
from synthspec.yamlfile import check_inside, load_yaml

if TYPE_CHECKING:
    from synthspec.grammar.model import Grammar

Row = dict[str, Any]

# What the run depends on outside of its folder.


def start_folder(run: Run) -> Path:
    """The folder of the drafter that training starts from."""
    from synthspec.dflash.midtrain import start_folder as find

    return find(run.spec.train, run.root)


def target_of(run: Run) -> Target:
    """The spec's target, with a model folder that is relative to the spec made absolute."""
    target = run.spec.target
    folder = run.root / target.model
    return target.model_copy(update={"model": str(folder.resolve())}) if folder.is_dir() else target


def describe(target: Target) -> Row:
    """What is known of a target without loading its weights; read once a process."""
    return dict(_described(target.model_dump_json()))


@lru_cache(maxsize=4)
def _described(target: str) -> Row:
    with progress.bar("looking at the target", None, ""):
        from synthspec.targets.load import describe_target

        facts: Row = describe_target(Target.model_validate_json(target))
    return facts


@lru_cache(maxsize=1)
def _loaded(target: str) -> Any:
    from synthspec.targets.load import load_target

    return load_target(Target.model_validate_json(target))


def loaded_target(run: Run) -> Any:
    """The target with its weights; loaded once a process."""
    with progress.bar("loading the target", None, ""):
        return _loaded(target_of(run).model_dump_json())


@lru_cache(maxsize=1)
def _tokenizer(target: str) -> Any:
    from synthspec.targets.load import load_tokenizer

    return load_tokenizer(Target.model_validate_json(target))


def tokenizer_of(run: Run) -> Any:
    return _tokenizer(target_of(run).model_dump_json())


def tokenizer_facts(run: Run) -> Row:
    """Fingerprints of how the target reads and writes text."""
    facts = describe(target_of(run))
    return {"target": {name: facts[name] for name in ("tokenizer_sha256", "template_sha256")}}


def target_facts(run: Run) -> Row:
    """What makes the target this target and no other."""
    from synthspec.targets.load import IDENTITY

    facts = describe(target_of(run))
    return {name: facts[name] for name in IDENTITY}


def versions() -> list[str]:
    """The libraries that the target's answers depend on, with their versions."""
    from synthspec.targets.load import versions as of_libraries

    return of_libraries()


def grammar_backend() -> str:
    return f"llguidance {metadata.version('llguidance')}"


def source_files(source: PromptSource, root: Path) -> dict[str, Path]:
    """The files of a prompt source by the name that the manifest gives them; none for a hub dataset.

    Raises:
        UserError: the package that should hold them is not installed.
    """
    if not source.files:
        return {}
    if not source.package:
        return {f"project/{file}": check_inside(root, file) for file in source.files}
    from synthspec.prompting.pull import installed_package

    folder, _ = installed_package(source)
    return {f"{source.package}/{file}": check_inside(folder, file) for file in source.files}


def project_grammars(spec: Spec, root: Path) -> list[Grammar]:
    """All grammars of a project, checked, in the order of `grammar_files`.

    Raises:
        UserError: as `load_grammars`; a held-out grammar that does not exist, or none left to train on.
    """
    from synthspec.grammar.model import load_grammars

    grammars = load_grammars(root, spec.grammars)
    names = {grammar.name for grammar in grammars}
    for name in spec.holdout.grammars:
        if name not in names:
            raise UserError(
                f"holdout.grammars: there is no grammar {name}: the grammars are {', '.join(sorted(names))}"
            )
    if names <= set(spec.holdout.grammars):
        raise UserError("holdout.grammars: every grammar is held out, so none is left to train on: leave one")
    return grammars


def project_files(run: Run) -> dict[str, Path]:
    """Grammar files and prompt files by name, for the fingerprint of the first stage."""
    from synthspec.grammar.model import grammar_files

    found = {
        f"project/{file.relative_to(run.root.resolve()).as_posix()}": file
        for file in grammar_files(run.root, run.spec.grammars)
    }
    for source in run.spec.prompts:
        found.update(source_files(source, run.root))
    return found


def templates(run: Run) -> dict[str, Path]:
    """The templates that ship with synthspec and end up in conversations."""
    folder = Path(str(files("synthspec.prompts")))
    return {f"templates/{file.name}": file for file in sorted(folder.glob("*.jinja"))}


def ledger_so_far(run: Run) -> Row:
    """The ledger without the report's own line: what the report shows of it."""
    stages = run.ledger().model_dump(mode="json")["stages"]
    return {"ledger": {name: line for name, line in stages.items() if name != "report"}}


def run_grammars(run: Run) -> list[Grammar]:
    """The run's own copies of the grammars, in the order of their names."""
    from synthspec.grammar.model import Grammar

    return [load_yaml(file, Grammar) for file in sorted(run.path("grammars").glob("*.yaml"))]


# The stages.


def pull(run: Run) -> Counts:
    """Copy the grammars and read every prompt source; unit: prompt."""
    from synthspec.grammar.model import grammar_files
    from synthspec.prompting.pull import pull as pull_source
    from synthspec.samples.schema import PROMPTS, write_rows

    found_grammars = project_grammars(run.spec, run.root)
    for file, grammar in zip(grammar_files(run.root, run.spec.grammars), found_grammars, strict=True):
        write_text(run.path(f"grammars/{grammar.name}.yaml"), file.read_text("utf-8-sig"))
    rows: list[Row] = []
    states: list[str] = []
    seen: set[str] = set()
    with progress.bar("pull", None, "prompts") as tick:
        for source in run.spec.prompts:
            found, became = pull_source(source, run.root, seen, tick)
            rows += found
            states += became
    _some(rows, run, "pull", "no prompt could be read from any source", states)
    write_rows(run.path("prompts/prompts.parquet"), PROMPTS, rows)
    return count("prompt", states)


def match(run: Run) -> Counts:
    """Pair prompts with grammars; unit: prompt."""
    from synthspec.prompting.match import match as match_prompts
    from synthspec.samples.schema import MATCHES, write_rows

    prompts = _rows(run, "prompts/prompts.parquet")
    with progress.bar("match", len(prompts), "prompts") as tick:
        rows, states = match_prompts(prompts, run_grammars(run), run.spec, tick)
    _some(rows, run, "match", "no prompt fits any grammar", states)
    write_rows(run.path("matches/matches.parquet"), MATCHES, rows)
    return count("prompt", states)


def render(run: Run) -> Counts:
    """Write out conversations; unit: match."""
    from synthspec.prompting.render import render as render_matches
    from synthspec.samples.schema import REQUESTS, write_rows

    matches = _rows(run, "matches/matches.parquet")
    prompts = _rows(run, "prompts/prompts.parquet")
    with progress.bar("render", len(matches), "matches") as tick:
        rows, states = render_matches(matches, prompts, run_grammars(run), tokenizer_of(run), run.spec, tick)
    _some(rows, run, "render", "no conversation is short enough", states)
    write_rows(run.path("requests/requests.parquet"), REQUESTS, rows)
    return count("match", states)


def generate(run: Run) -> Counts:
    """Let the target answer; unit: request."""
    from synthspec.targets.answer import answer

    requests = _rows(run, "requests/requests.parquet")
    target = loaded_target(run)
    with progress.bar("generate", len(requests), "requests", resumes=True) as tick:
        answer(requests, target, run.path("completions"), tick)
    answered = {row["request_id"] for row in _rows(run, "completions")}
    return count("request", ("kept" if row["id"] in answered else "error" for row in requests))


def conform(run: Run) -> Counts:
    """Parse and validate answers, label their spans; unit: completion."""
    from synthspec.grammar.conform import conform as check_answer
    from synthspec.samples.schema import SAMPLES, write_rows

    tokenizer = tokenizer_of(run)
    grammars = {grammar.name: grammar for grammar in run_grammars(run)}
    requests = {row["id"]: row for row in _rows(run, "requests/requests.parquet")}
    prompts = {row["id"]: row for row in _rows(run, "prompts/prompts.parquet")}
    completions = _rows(run, "completions")
    rows: list[Row] = []
    states: list[str] = []
    reasons: list[str] = []
    with progress.bar("conform", len(completions), "completions") as tick:
        for completion in completions:
            request = requests[completion["request_id"]]
            verdict = check_answer(request, completion, grammars.get(request["grammar"]), tokenizer)
            states.append(verdict.state)
            if verdict.state == "kept":
                rows.append(_sample(prompts[request["prompt_id"]], request, completion, verdict.spans))
            else:
                reasons.append(verdict.reason)
            tick(1)
    _some(rows, run, "conform", "no answer passed its checks", states, reasons)
    write_rows(run.path("samples/samples.parquet"), SAMPLES, sorted(rows, key=lambda row: row["id"]))
    return count("completion", states)


def _sample(prompt: Row, request: Row, completion: Row, spans: Iterable[tuple[str, int, int]]) -> Row:
    """A row of `SAMPLES`; spans come in counted from the completion's first token."""
    before = len(request["prompt_ids"])
    ids = [*request["prompt_ids"], *completion["ids"]]
    placed = [{"kind": kind, "start": before + start, "end": before + end} for kind, start, end in spans]
    lineage = {name: prompt[name] for name in ("source", "dataset", "revision", "row", "licence")}
    return {
        "id": content_id("sample", request["id"], ids, placed),
        "purpose": request["purpose"],
        "grammar": request["grammar"],
        "set": request["set"],
        "input_ids": ids,
        "prompt_tokens": before,
        "loss_mask": [0] * before + [1] * len(completion["ids"]),
        "spans": placed,
        "constraint": request["constraint"],
        "max_new_tokens": request["max_new_tokens"],
        "lineage": {
            **lineage,
            "prompt_id": prompt["id"],
            "match_id": request["match_id"],
            "request_id": request["id"],
            "completion_id": completion["id"],
            "target": completion["target"],
        },
    }


def assemble(run: Run) -> Counts:
    """Training set and evaluation sets; unit: sample."""
    from synthspec.samples import card
    from synthspec.samples.assemble import TRAIN, write
    from synthspec.samples.assemble import assemble as split

    samples = _rows(run, "samples/samples.parquet")
    with progress.bar("assemble", len(samples), "samples") as tick:
        sets, states = split(samples, _rows(run, "prompts/prompts.parquet"), run.spec, tick)
    _some(sets[TRAIN], run, "assemble", "no sample is left to train on", states)
    counts = count("sample", states)
    write(run.folder, sets, card.card(run.spec, sets, {**run.ledger().stages, "assemble": counts}))
    return counts


def train(run: Run) -> Counts:
    """Train the drafter; unit: step."""
    from synthspec.acceptance.measure import by_purpose
    from synthspec.dflash.midtrain import midtrain
    from synthspec.samples.schema import DEV

    target = loaded_target(run)
    settings = run.spec.train
    dev = _rows(run, f"sets/{DEV}.parquet")
    samples = run.ledger().stages["assemble"].kept

    def evaluate(drafter: Any) -> dict[str, float]:
        with progress.bar("measure on the way", len(dev), "answers") as seen:
            return by_purpose(dev, target, drafter, seen)

    with (
        progress.bar("read the training set", samples, "samples") as reading,
        progress.bar("train", settings.steps, "steps", resumes=True) as tick,
    ):
        midtrain(
            run.path("trainset/train.parquet"),
            target,
            settings,
            run.path("checkpoints"),
            run.spec.seed,
            root=run.root,
            evaluate=evaluate if dev else None,
            tick=tick,
            reading=reading,
        )
    return Counts("step", settings.steps, settings.steps)


def measure(run: Run) -> Counts:
    """Measure acceptance before and after training; unit: request."""
    from synthspec.acceptance.measure import measure as measure_sets
    from synthspec.dflash.checkpoint import load
    from synthspec.samples.schema import DEV

    target = loaded_target(run)
    start, trained = (
        load(folder, target.model.dtype).to(target.model.device)
        for folder in (start_folder(run), run.path("checkpoints/final"))
    )
    measured = [file for file in sorted(run.path("sets").glob("*.parquet")) if file.stem != DEV]
    requests = sum(len(_rows(run, f"sets/{file.name}")) for file in measured)
    with progress.bar("measure", 2 * requests, "answers") as tick:
        sets = measure_sets(run.path("sets"), target, start, trained, tick)
    log = json.loads(run.path("checkpoints/log.json").read_text("utf-8"))
    acceptance = {
        "version": 1,
        "drafter": drafter_facts(run),
        "block_size": trained.config.block_size,
        "sets": sets,
        "training": [
            {name: entry[name] for name in ("step", "loss", "accept_len") if name in entry}
            for entry in log["steps"]
        ],
        "gate": None,
    }
    write_acceptance(run, acceptance)
    return Counts("request", requests, requests)


def drafter_facts(run: Run) -> Row:
    """What the trained drafter is and where it came from."""
    config = json.loads(run.path("checkpoints/final/config.json").read_text("utf-8"))
    log = json.loads(run.path("checkpoints/log.json").read_text("utf-8"))
    return {
        "layers": config["num_hidden_layers"],
        "block_size": config["block_size"],
        "taps": config["dflash_config"]["target_layer_ids"],
        "start": run.spec.train.start,
        "steps": run.spec.train.steps,
        "chosen_step": log["chosen_step"],
    }


def check(run: Run) -> Counts:
    """Decide whether the drafter may ship, and export it if so; unit: drafter."""
    from synthspec.acceptance.gate import decide
    from synthspec.samples.schema import DEV

    acceptance = read_acceptance(run)
    wanted = [file.stem for file in sorted(run.path("sets").glob("*.parquet")) if file.stem != DEV]
    gate = {**decide(acceptance, run.spec.gate, wanted), "overridden": False}
    if gate["passed"]:
        export(run, gate)
    write_acceptance(run, {**acceptance, "gate": gate})
    return Counts("drafter", 1, int(gate["passed"]), {} if gate["passed"] else {"refused": 1})


def export(run: Run, gate: Row) -> None:
    """Write the folder that a server loads."""
    from synthspec.dflash.checkpoint import export as write_export

    facts = {
        "run": run.name,
        "gate": {"passed": gate["passed"], "overridden": gate["overridden"]},
        "drafter": drafter_facts(run),
    }
    write_export(run.path("checkpoints/final"), run.path("export"), describe(target_of(run)), facts)


def exported(run: Run) -> bool:
    """Whether the export is there, and whole: its manifest is written last."""
    return run.path("export/manifest.json").is_file()


def read_acceptance(run: Run) -> Row:
    value: Row = json.loads(run.path("acceptance.json").read_text("utf-8"))
    return value


def write_acceptance(run: Run, acceptance: Row) -> None:
    """Write acceptance.json, which must be what its schema says."""
    from synthspec.acceptance.result import Acceptance

    Acceptance.model_validate(acceptance)
    write_json(run.path("acceptance.json"), acceptance)


def report(run: Run) -> Counts:
    """Write the page; unit: page."""
    from synthspec.reporting.page import Report
    from synthspec.reporting.page import render as render_page

    facts = Report(
        name=run.name,
        created=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        acceptance=read_acceptance(run),
        ledger=run.ledger().model_dump(mode="json"),
        manifest=run.manifest.model_dump(mode="json"),
        target=describe(target_of(run)),
        drafter=drafter_facts(run),
        sources=_sources(_rows(run, "prompts/prompts.parquet")),
        grammars=_grammars(run),
        exported=exported(run),
    )
    write_text(run.path("report.html"), render_page(facts))
    return Counts("page", 1, 1)


def _sources(prompts: list[Row]) -> list[Row]:
    keys = ("source", "dataset", "revision", "licence")
    found = Counter(tuple(row[key] for key in keys) for row in prompts)
    return [{**dict(zip(keys, values, strict=True)), "rows": n} for values, n in sorted(found.items())]


def _grammars(run: Run) -> list[Row]:
    held = run.spec.holdout.grammars
    trained = Counter(row["grammar"] for row in _rows(run, "trainset/train.parquet"))
    for name in held:
        file = f"sets/grammar_{name}.parquet"
        trained[name] = len(_rows(run, file)) if run.path(file).exists() else 0
    return [
        {
            "name": grammar.name,
            "kind": grammar.kind,
            "held_out": grammar.name in held,
            "samples": trained[grammar.name],
        }
        for grammar in run_grammars(run)
    ]


def _rows(run: Run, name: str) -> list[Row]:
    from synthspec.samples.schema import read_rows

    return read_rows(run.path(name))


def _some(
    rows: list[Row], run: Run, stage: str, otherwise: str, states: list[str], reasons: Iterable[str] = ()
) -> None:
    """Refuse to go on with nothing, and say what became of all rows."""
    if rows:
        return
    became = ", ".join(f"{n:,} {state}" for state, n in Counter(states).most_common())
    often = Counter(reasons).most_common(3)
    why = "; most often: " + ", ".join(f"{reason} ({n:,})" for reason, n in often) if often else ""
    raise UserError(f"run {run.name}: stage {stage} left nothing: {otherwise} ({became or 'no rows'}){why}")
