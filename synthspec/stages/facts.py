"""What stages depend on: the project, the target, the starting drafter, and the run's own grammars."""

from __future__ import annotations

from functools import lru_cache
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synthspec import progress
from synthspec.errors import UserError
from synthspec.files import is_folder
from synthspec.keys import read_key, unlock_hub
from synthspec.run import Run
from synthspec.spec import PromptSource, Servers, Spec, Target
from synthspec.yamlfile import check_inside

if TYPE_CHECKING:
    from synthspec.grammar.model import Grammar

Row = dict[str, Any]


def start_folder(run: Run) -> Path:
    """The folder of the drafter that training starts from."""
    from synthspec.dflash.checkpoint import find

    if "@" in run.spec.train.start:
        unlock_hub(run.spec.hub.key, run.root)
    return find(run.spec.train.start, run.root)


def target_of(run: Run) -> Target:
    """The spec's target, with a model folder that is relative to the spec made absolute."""
    target = run.spec.target
    folder = run.root / target.model
    if is_folder(folder):
        return target.model_copy(update={"model": str(folder.resolve())})
    unlock(run)
    return target


def keys(run: Run) -> None:
    """See that every key of the spec is where it says."""
    named = {
        "worker.key": run.spec.worker.key if isinstance(run.spec.worker, Servers) else None,
        "hub.key": run.spec.hub.key,
        "train.features.key": run.spec.train.features.key if run.spec.train.features else None,
    }
    for field, key in named.items():
        if key is not None:
            read_key(key, run.root, field)


def unlock(run: Run) -> None:
    """Make the hub's key known where the spec names something of the hub."""
    if run.spec.target.revision or any(source.dataset for source in run.spec.prompts):
        unlock_hub(run.spec.hub.key, run.root)


def describe(target: Target) -> Row:
    """What is known of a target without loading its weights; read once a process."""
    return dict(_described(target.model_dump_json()))


@lru_cache(maxsize=4)
def _described(target: str) -> Row:
    with progress.bar("looking at the target", None, ""):
        from synthspec.targets.load import describe_target

        facts: Row = describe_target(Target.model_validate_json(target))
    return facts


def fitting_target(run: Run) -> Row:
    """Facts of the target, which must fit into memory where it runs in this process."""
    from synthspec.targets.load import check_memory

    target = target_of(run)
    about = describe(target)
    if run.spec.worker.kind == "transformers":
        check_memory(about, target)
    return about


def fitting_start(run: Run, target: Row) -> Any:
    """The starting drafter's config, which must be one for this target."""
    from synthspec.dflash.checkpoint import check_files, check_fits, check_mask
    from synthspec.dflash.config import read_config

    folder = start_folder(run)
    config = read_config(folder)
    check_files(folder)
    check_fits(
        config,
        folder,
        hidden_size=target["hidden_size"],
        layers=target["layers"],
        vocabulary=target["vocab_size"],
        target=target,
    )
    check_mask(config, folder, tokenizer_of(run))
    return config


@lru_cache(maxsize=1)
def _loaded(target: str, worker: str) -> Any:
    from synthspec.targets.load import load_target

    return load_target(Target.model_validate_json(target), worker)


def loaded_target(run: Run) -> Any:
    """The target with its weights; loaded once a process."""
    with progress.bar("loading the target", None, ""):
        return _loaded(target_of(run).model_dump_json(), run.spec.worker.kind)


@lru_cache(maxsize=1)
def _tokenizer(target: str) -> Any:
    from synthspec.targets.load import load_tokenizer

    return load_tokenizer(Target.model_validate_json(target))


def worker_key(run: Run) -> str | None:
    """The key that the spec's servers want; it is kept nowhere."""
    key = run.spec.worker.key if isinstance(run.spec.worker, Servers) else None
    return read_key(key, run.root, "worker.key") if key else None


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


def tags_written_with() -> str | None:
    """What writes JSON in structural tags for servers as grammars, with exact spaces; None: nothing here."""
    try:
        return f"xgrammar {metadata.version('xgrammar')}"
    except metadata.PackageNotFoundError:
        return None


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
    from synthspec.grammar.model import catalogue_file, grammar_files

    grammars = grammar_files(run.root, run.spec.grammars)
    catalogues = [file for file in map(catalogue_file, grammars) if file is not None]
    found = {
        f"project/{file.relative_to(run.root.resolve()).as_posix()}": file for file in [*grammars, *catalogues]
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
    from synthspec.grammar.model import load_grammar

    folder = run.path("grammars")
    return [
        load_grammar(file, folder, folder / "catalogues" / file.name) for file in sorted(folder.glob("*.yaml"))
    ]


def played_grammars(run: Run) -> dict[str, str]:
    """Fingerprints of the run's grammars in which the target writes earlier turns too, by name."""
    return {grammar.name: grammar.fingerprint for grammar in run_grammars(run) if grammar.played}


def target_fills_slots(run: Run) -> bool:
    """Whether a grammar of the run has a slot whose values the target writes."""
    from synthspec.grammar.slots import asked_slots

    return bool(asked_slots(run_grammars(run)))
