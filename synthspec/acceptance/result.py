"""acceptance.json and what else is written about a trained drafter, as models that check them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Length = Annotated[float, Field(ge=1, description="mean tokens that a verification step yields")]
Interval = Annotated[list[float], Field(min_length=2, max_length=2, description="95%, lower and upper end")]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="SHA-256")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SpanAcceptance(_Part):
    accepted: Count = Field(description="drafted tokens of this kind that were accepted")
    proposed: Count = Field(description="drafted tokens of this kind that were looked at")


class Measured(_Part):
    """One drafter on one set."""

    accept_len: Length
    ci95: Interval
    by_position: list[Share] = Field(description="share of steps that accepted the first k drafted tokens")
    by_span: dict[Literal["forced", "structure", "value", "free"], SpanAcceptance]
    by_grammar: dict[str, Length]
    verify_steps: Count
    tokens: Count


class Difference(_Part):
    """Trained minus start, on the same requests."""

    mean: float
    ci95: Interval


class SetResult(_Part):
    name: str
    kind: Literal["heldout_prompts", "heldout_grammar", "ood"]
    requests: Count
    start: Measured
    trained: Measured
    difference: Difference


class TrainingEntry(_Part):
    step: Count
    loss: float | None = Field(None, description="mean since the entry before")
    accept_len: dict[str, float] | None = Field(
        None, description="acceptance length by group of the requests that choose the checkpoint"
    )


class Decision(_Part):
    """What the gate said."""

    passed: bool
    reasons: list[str] = Field(description="one sentence a rule and set")
    failed: list[str] = Field([], description="the reasons that refuse")
    sets: dict[str, bool] = Field({}, description="whether each set passed")
    rules: dict[str, float] = Field(description="the rules of the spec, as they were applied")
    overridden: bool = Field(False, description="a person exported a refused drafter all the same")


class DrafterFacts(_Part):
    layers: Count
    block_size: Count = Field(description="tokens, the anchor included")
    taps: list[int] = Field(description="0-based target layers whose outputs it reads")
    start: str = Field(description="the drafter that training started from")
    steps: Count
    chosen_step: Count = Field(description="the step whose weights were kept")


class Acceptance(_Part):
    """acceptance.json: how long guesses hold before and after training, and the gate's decision."""

    version: Literal[1] = 1
    drafter: DrafterFacts
    block_size: Count
    sets: list[SetResult]
    training: list[TrainingEntry]
    gate: Decision | None = Field(description="null until the check stage has run")


class RequestCounts(_Part):
    """Two numbers a request."""

    accepted: list[Count] = Field(description="draft tokens that were accepted")
    steps: list[Count] = Field(description="verification steps")


class LogEntry(TrainingEntry):
    first_guess: float | None = Field(None, description="mean probability of the right first token")
    counts: dict[str, RequestCounts] | None = Field(None, description="what accept_len was computed from")
    stopped: str | None = Field(None, description="why training ended before its last step")


class WindowedContext(_Part):
    """What train.max_context dropped."""

    documents: Count = Field(description="samples that are longer")
    anchors: Count = Field(description="possible anchors that have more context than it")
    dropped: Count = Field(description="context tokens, over all possible anchors, that are not looked at")
    context: Count = Field(description="context tokens, over all possible anchors, that there are")


class TrainingLog(_Part):
    """checkpoints/log.json: what training did, checkpoint by checkpoint."""

    version: Literal[1] = 1
    steps: list[LogEntry]
    chosen_step: Count
    windowed: WindowedContext | None = None


class GateBrief(_Part):
    passed: bool
    overridden: bool


class ExportManifest(_Part):
    """export/manifest.json: binds a drafter to the one target that it was trained for."""

    version: Literal[1] = 1
    format: Literal["sglang", "vllm", "transformers"] = Field("sglang", description="whose layout it is in")
    run: str
    weights_sha256: Digest
    config_sha256: Digest
    target: dict[str, Any] = Field(
        description="model, revision, and digests of weights, tokenizer and chat template, with sizes"
    )
    gate: GateBrief
    drafter: DrafterFacts
