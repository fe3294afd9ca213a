"""The same drafter in the packages that others use: `dflash` (z-lab's reference) and `speculators`.

Both come without what they would install beside (`pip install --no-deps`, see the Makefile).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from synthspec.dflash.checkpoint import export, export_as, load, save
from synthspec.dflash.config import FULL, SLIDING
from synthspec.dflash.decode import SpeculativeAsk, decode
from synthspec.dflash.model import Drafter
from synthspec.errors import UserError
from synthspec.targets.causal import CausalModel
from tests.dflash.conftest import MASK, VOCABULARY, drafter_config, tiny_llama

TOKENS = 11
ROPE = {"rope_theta": 10_000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    **ROPE,
}
SHAPES = {
    "full": {},
    "sliding": {"layer_types": (SLIDING, FULL), "sliding_window": 6},
    "wide heads": {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 24},
    "with biases": {"attention_bias": True},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            **ROPE,
        }
    },
    "llama3": {"rope_parameters": LLAMA3},
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.2, 1.3],
            "long_factor": [2.0, 4.0, 6.0, 8.0],
            "original_max_position_embeddings": 64,
            **ROPE,
        }
    },
    "proportional": {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.5, **ROPE}},
}
# What transformers' Qwen3 cannot compute, on which both packages rest.
ENGINES_ONLY = {
    "a part": {"rope_parameters": LLAMA3 | {"partial_rotary_factor": 0.5}},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, **ROPE}},
}


@pytest.fixture(scope="module")
def zlab():
    return pytest.importorskip(
        "dflash.model", reason="z-lab's package is not here: pip install --no-deps dflash==0.1.0"
    )


@pytest.fixture(scope="module")
def speculators():
    pytest.importorskip(
        "speculators",
        reason="speculators is not here: pip install --no-deps speculators==0.9.0 hs-connectors==0.9.0",
    )
    from speculators.models import dflash

    return dflash


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    tiny_llama().save_pretrained(folder)
    return folder


def drafter_of(shape: str) -> Drafter:
    """A random drafter, its norms and biases too, in numbers that bfloat16 holds."""
    torch.manual_seed(1)
    drafter = Drafter(drafter_config(**(SHAPES | ENGINES_ONLY)[shape]))
    with torch.no_grad():
        for weight in drafter.parameters():
            weight += 0.2 * torch.randn_like(weight)
            weight.copy_(weight.bfloat16())
    return drafter


def exported(drafter: Drafter, folder: Path, target: Path, kind: str) -> Path:
    save(drafter, folder / "final")
    export(folder / "final", folder / "export", {"model": "tiny", "tokenizer_sha256": "t"}, {"run": "r"})
    out = folder / kind
    export_as(
        kind,  # type: ignore[arg-type]
        folder / "export",
        out,
        target=str(target),
        architectures=["LlamaForCausalLM"],
        scale=1.0,
    )
    return out


SAID_BY_US = ("architectures", "block_size", "dflash_config", "num_target_layers")


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Features of a text, and the embeddings of the block behind it."""
    torch.manual_seed(5)
    return torch.randn(1, TOKENS, 64), torch.randn(1, 4, 32)


@torch.no_grad()
def hidden_of_ours(drafter: Drafter) -> torch.Tensor:
    features, block = inputs()
    at = torch.arange(TOKENS, TOKENS + 4)[None, None]
    context = drafter.inject(features, torch.arange(TOKENS)[None])
    return drafter(block[:, None], at, context, torch.ones(1, 1, TOKENS, dtype=torch.bool))[:, 0]


@torch.no_grad()
def hidden_of_zlab(model) -> torch.Tensor:
    features, block = inputs()
    positions = torch.arange(TOKENS + 4)[None]
    return model(position_ids=positions, noise_embedding=block, target_hidden=features)


@torch.no_grad()
def hidden_of_speculators(model, windows: list[int | None]) -> torch.Tensor:
    """The forward pass of its layers, without the anchors and the loss of its training."""
    features, block = inputs()
    context = model.hidden_norm(model.fc(features))
    positions = torch.arange(TOKENS + 4)[None]
    angles = model.rotary_emb(context, positions)
    keys, queries = torch.arange(TOKENS + 4), torch.arange(TOKENS, TOKENS + 4)[:, None]
    x = block
    for layer, window in zip(model.layers, windows, strict=True):
        seen = torch.ones(4, TOKENS + 4, dtype=torch.bool)
        if window is not None:
            seen = (keys <= queries) & (keys > queries - window)
        mask = torch.zeros(1, 1, 4, TOKENS + 4).masked_fill(~seen, float("-inf"))
        x = layer(
            hidden_states=x,
            target_hidden=context,
            attention_mask=mask,
            position_ids=positions,
            position_embeddings=angles,
        )
    return model.norm(x)


@pytest.mark.parametrize("shape", SHAPES)
def test_z_labs_code_computes_the_same_from_our_export(zlab, target, tmp_path, shape):
    ours = drafter_of(shape)
    folder = exported(ours, tmp_path, target, "transformers")
    theirs = zlab.DFlashDraftModel.from_pretrained(folder, dtype=torch.float32).eval()
    torch.testing.assert_close(hidden_of_zlab(theirs), hidden_of_ours(ours), rtol=1e-5, atol=1e-5)
    assert theirs.block_size == ours.config.block_size
    assert theirs.mask_token_id == MASK
    assert tuple(theirs.target_layer_ids) == ours.config.target_layer_ids


@pytest.mark.parametrize("shape", SHAPES)
def test_our_code_computes_the_same_from_z_labs_checkpoint(zlab, tmp_path, shape):
    from transformers import Qwen3Config

    content = drafter_config(**SHAPES[shape]).to_json()
    torch.manual_seed(7)
    theirs = zlab.DFlashDraftModel(Qwen3Config(**content)).eval()
    with torch.no_grad():
        for weight in theirs.parameters():
            weight += 0.2 * torch.randn_like(weight)
    theirs.save_pretrained(tmp_path)
    torch.testing.assert_close(hidden_of_ours(load(tmp_path)), hidden_of_zlab(theirs), rtol=1e-5, atol=1e-5)


def test_z_labs_code_guesses_what_ours_guesses(zlab, target, tmp_path):
    """Token by token of a whole answer: what it drafts from our export, and what we draft."""
    ours = drafter_of("full")
    theirs = zlab.DFlashDraftModel.from_pretrained(
        exported(ours, tmp_path, target, "transformers"), dtype=torch.float32
    ).eval()
    llama = tiny_llama()
    prompt = [3, 14, 15, 9, 9, 6, 5]
    drafts = []
    compute = theirs.compute_logits
    theirs.compute_logits = lambda hidden, head: (
        drafts.append(compute(hidden, head).argmax(-1)[0].tolist()),
        compute(hidden, head),
    )[1]
    answer = theirs.spec_generate(
        target=llama, input_ids=torch.tensor([prompt]), max_new_tokens=20, stop_token_ids=[2]
    )
    model = CausalModel(tiny_llama())
    seen = []
    logits = model.logits
    model.logits = lambda hidden: (seen.append(found := logits(hidden)), found)[1]
    (trace,) = decode(model, ours, [SpeculativeAsk(prompt, 20)], stop_ids=[2])
    assert prompt + trace.ids == answer[0].tolist()
    guessed = [found[0].argmax(-1).tolist() for found in seen if found.ndim == 3 and found.shape[1] == 3]
    whole = [draft for draft in drafts if len(draft) == 3]  # at its end it drafts no further than it writes
    assert len(whole) > 3
    assert guessed[: len(whole)] == whole


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "with biases"])
def test_speculators_computes_the_same_from_our_export_for_vllm(speculators, target, tmp_path, shape):
    ours = drafter_of(shape)
    folder = exported(ours, tmp_path, target, "vllm")
    theirs = speculators.DFlashDraftModel.from_pretrained(str(folder), dtype=torch.float32).eval()
    theirs.config.transformer_layer_config._attn_implementation = "eager"
    windows = [ours.config.sliding_window if kind == SLIDING else None for kind in ours.config.layer_types]
    torch.testing.assert_close(
        hidden_of_speculators(theirs, windows), hidden_of_ours(ours), rtol=1e-5, atol=1e-5
    )
    assert theirs.config.aux_hidden_state_layer_ids == [tap + 1 for tap in ours.config.target_layer_ids]
    assert theirs.config.speculators_config.verifier.name_or_path == str(target)
    assert theirs.mask_token_id == MASK


def test_our_code_reads_what_speculators_saves(speculators, target, tmp_path):
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import Qwen3Config

    layers = drafter_config().to_json()
    torch.manual_seed(7)
    config = speculators.DFlashSpeculatorConfig(
        transformer_layer_config=Qwen3Config(
            **{name: layers[name] for name in layers if name not in SAID_BY_US}
        ),
        draft_vocab_size=VOCABULARY,
        block_size=4,
        aux_hidden_state_layer_ids=[2, 4],
        mask_token_id=MASK,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=str(target), architectures=["LlamaForCausalLM"]),
        ),
    )
    theirs = speculators.DFlashDraftModel(config=config).eval()
    theirs.save_pretrained(str(tmp_path / "saved"))
    ours = load(tmp_path / "saved")
    assert ours.config.target_layer_ids == (1, 3)
    assert ours.config.num_target_layers is None  # it does not say
    theirs.config.transformer_layer_config._attn_implementation = "eager"
    torch.testing.assert_close(
        hidden_of_ours(ours), hidden_of_speculators(theirs, [None, None]), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *((kind, shape) for kind in ("sglang", "vllm", "transformers") for shape in SHAPES),
        *((kind, shape) for kind in ("sglang", "vllm") for shape in ENGINES_ONLY),
    ],
)
def test_every_export_comes_back_as_the_drafter_that_it_was(target, tmp_path, kind, shape):
    ours = drafter_of(shape)
    folder = exported(ours, tmp_path, target, kind)
    again = load(folder)
    assert again.config == ours.config
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["format"], manifest["target"]["tokenizer_sha256"], manifest["run"]) == (kind, "t", "r")


@pytest.mark.parametrize(
    ("kind", "rope", "scale", "words"),
    [
        ("transformers", {"rope_type": "dynamic", "factor": 2.0}, 1.0, "turns slower as a text grows"),
        (
            "transformers",
            {"rope_type": "default", "partial_rotary_factor": 0.5},
            1.0,
            "only turn a whole head",
        ),
        ("vllm", {"rope_type": "default"}, 5.66, "multiplies its embeddings by 5.66"),
    ],
)
def test_an_engine_that_would_compute_something_else_gets_no_export(tmp_path, kind, rope, scale, words):
    save(Drafter(drafter_config(rope_parameters=rope | ROPE)), tmp_path / "final")
    export(tmp_path / "final", tmp_path / "export", {"model": "m"}, {})
    with pytest.raises(UserError, match=words):
        export_as(kind, tmp_path / "export", tmp_path / "out", target="m", architectures=[], scale=scale)


def test_z_labs_code_is_told_by_what_a_target_multiplies_its_embeddings(tmp_path):
    save(Drafter(drafter_config()), tmp_path / "final")
    export(tmp_path / "final", tmp_path / "export", {"model": "m"}, {})
    export_as(
        "transformers", tmp_path / "export", tmp_path / "out", target="m", architectures=[], scale=5.65685
    )
    assert load(tmp_path / "out").config.input_embedding_scale == 5.65685
