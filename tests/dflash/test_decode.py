from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest
import torch

from synthspec.dflash.checkpoint import find, load
from synthspec.dflash.decode import SpeculativeAsk, decode
from synthspec.dflash.model import Drafter
from synthspec.grammar.constraint import Constraint, Json, Text, TokenConstraints
from synthspec.grammar.constraint import row as row_of
from synthspec.spec import Target
from synthspec.targets.causal import CausalModel
from synthspec.targets.generate import Ask, generate
from synthspec.targets.load import load_target
from tests.dflash.conftest import drafter_config, tiny_llama
from tests.prompting.prompting_cases import tokenizer_with

PROMPTS = [[1, 5, 9, 7], [1, 5, 9, 7, 30, 31, 32], [1, 5], [1, 44, 45, 46, 47, 48]]


class OnlyEven:
    """A constraint that allows even tokens; remembers what it was told, so that a slip is noticed."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def allows(self, token):
        return token % 2 == 0

    def fill(self, bitmask, row):
        bits = [sum(1 << b for b in range(32) if (w * 32 + b) % 2 == 0) for w in range(bitmask.shape[1])]
        bitmask[row] = torch.tensor([b - (1 << 32) if b >= 1 << 31 else b for b in bits], dtype=torch.int32)

    def accept(self, token):
        assert self.allows(token)
        self.taken.append(token)

    def rollback(self, count):
        assert count <= len(self.taken)
        del self.taken[len(self.taken) - count :]


@pytest.mark.parametrize("constrained", [False, True])
def test_greedy_output_is_that_of_plain_decoding(model, drafter, constrained):
    rule = OnlyEven if constrained else lambda: None
    plain = generate(model, [Ask(ids, 40, rule()) for ids in PROMPTS], stop_ids=[2, 3])
    rules = [rule() for _ in PROMPTS]
    asks = [SpeculativeAsk(ids, 40, one) for ids, one in zip(PROMPTS, rules, strict=True)]
    drafted = decode(model, drafter, asks, stop_ids=[2, 3])
    for one, trace, constraint in zip(plain, drafted, rules, strict=True):
        assert trace.ids == one.ids
        assert trace.finish_reason == one.finish_reason
        if constraint:
            ended = trace.finish_reason == "stop" or len(trace.ids) == 40
            assert constraint.taken == trace.ids[: len(trace.ids) - ended]


def test_steps_account_for_every_token(model, drafter):
    for trace in decode(model, drafter, [SpeculativeAsk(ids, 40) for ids in PROMPTS], stop_ids=[2]):
        assert trace.places[0] == 1  # the first token comes from reading the prompt
        written = 1
        for place, agreed in zip(trace.places, trace.accepted, strict=True):
            assert place == written
            written += agreed + 1
        assert written >= len(trace.ids) > written - drafter.config.block_size


def knowing(model, drafter, monkeypatch, prompt: int, truth: list[int], wrong_at: set[int]) -> None:
    """Make the drafter draft the true continuation, but for the answer's places in `wrong_at`.

    The hidden state of a token is its own row of the head, which no other row matches better.
    """
    size = drafter.config.block_size

    def forward(block, at, context, seen):
        rows = block.shape[0]
        assert rows == 1
        next_place = int(at[0, 0, 0]) - prompt + 1
        hidden = torch.zeros(1, 1, size, block.shape[-1])
        for j in range(size - 1):
            place = next_place + j
            token = truth[place] if place < len(truth) else 0
            if place in wrong_at:
                token = (token + 2) % 90
            hidden[0, 0, j + 1] = model.head.weight[token]
        return hidden

    monkeypatch.setattr(drafter, "forward", forward)


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_drafts_right_and_wrong_change_the_steps_but_never_the_text(
    model, drafter, monkeypatch, constrained, seed
):
    rule = OnlyEven if constrained else lambda: None
    prompt = PROMPTS[seed]
    plain = generate(model, [Ask(prompt, 40, rule())], stop_ids=[2])[0]
    dice = random.Random(seed)
    wrong = {place for place in range(60) if dice.random() < 0.3}
    knowing(model, drafter, monkeypatch, len(prompt), plain.ids, wrong)
    constraint = rule()
    (trace,) = decode(model, drafter, [SpeculativeAsk(prompt, 40, constraint)], stop_ids=[2])
    assert trace.ids == plain.ids
    assert trace.finish_reason == plain.finish_reason
    for place, agreed in zip(trace.places, trace.accepted, strict=True):
        right = 0
        while right < 3 and place + right not in wrong and place + right < len(plain.ids):
            right += 1
        if place + right < len(plain.ids):
            assert agreed == right
    assert max(trace.accepted) == 3


def test_rows_of_a_batch_agree_to_different_lengths_and_keep_their_text(model, drafter, monkeypatch):
    """Each row's drafts are right up to a number of its own."""
    plain = generate(model, [Ask(ids, 40) for ids in PROMPTS], stop_ids=[])

    def forward(block, at, context, seen):
        rows, size = len(block), block.shape[2]
        hidden = torch.zeros(rows, 1, size, block.shape[-1])
        for i in range(rows):
            position = int(at[i, 0, 0])
            known = int((model.embedding.weight == block[i, 0, 0]).all(-1).nonzero()[0, 0])
            row = next(
                row
                for row, ids in enumerate(PROMPTS)
                if 0 <= position - len(ids) < 40 and plain[row].ids[position - len(ids)] == known
            )
            for j in range(size - 1):
                place = position - len(PROMPTS[row]) + 1 + j
                token = plain[row].ids[place] if place < 40 else 0
                hidden[i, 0, j + 1] = model.head.weight[token if j < row else (token + 2) % 90]
        return hidden

    monkeypatch.setattr(drafter, "forward", forward)
    traces = decode(model, drafter, [SpeculativeAsk(ids, 40) for ids in PROMPTS], stop_ids=[])
    assert [trace.ids for trace in traces] == [one.ids for one in plain]
    for row, trace in enumerate(traces):
        # Where two rows stand alike the wrong one is found now and then.
        assert trace.accepted.count(row) > 0.8 * len(trace.accepted)


def test_accepted_counts_are_not_cut_by_the_longest_length(model, drafter, monkeypatch):
    """τ counts agreement before the answer is trimmed: 1 + 4 tokens, then 2 of the next 4 are kept."""
    truth = generate(model, [Ask(PROMPTS[0], 20)], stop_ids=[])[0].ids
    knowing(model, drafter, monkeypatch, len(PROMPTS[0]), truth, set())
    (trace,) = decode(model, drafter, [SpeculativeAsk(PROMPTS[0], 7)], stop_ids=[])
    assert trace.ids == truth[:7]
    assert trace.accepted == [3, 3]


def test_a_real_grammar_is_followed_through_accepted_and_refused_drafts(smollm2_tokenizer, monkeypatch):
    """A tiny random target under a JSON schema, drafts half right: the text is that of plain decoding."""
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "nights": {"type": "integer", "maximum": 30},
        },
        "required": ["city", "nights"],
        "additionalProperties": False,
    }
    constraint = Constraint(row_of(Text("<call>"), Json(schema), Text("</call>"))).to_json()
    model = CausalModel(tiny_llama(vocab_size=49152, hidden_size=64))
    torch.manual_seed(3)
    drafter = Drafter(drafter_config(vocab_size=49152, hidden_size=64, mask_token_id=16))
    constraints = TokenConstraints(smollm2_tokenizer)
    stop = [smollm2_tokenizer.eos_token_id]
    prompt = smollm2_tokenizer("Two nights in Oslo, please.").input_ids
    (plain,) = generate(model, [Ask(prompt, 80, constraints.compile(constraint))], stop_ids=stop)
    assert plain.finish_reason == "stop"
    for wrong in (set(), {3, 4, 9, 15}, set(range(0, 80, 2))):
        knowing(model, drafter, monkeypatch, len(prompt), plain.ids, wrong)
        ask = SpeculativeAsk(prompt, 80, constraints.compile(constraint))
        (trace,) = decode(model, drafter, [ask], stop_ids=stop)
        assert trace.ids == plain.ids
        if not wrong:
            assert trace.accepted[:-1] == [3] * (len(trace.accepted) - 1)


BYTES, BYTES_MASK = 260, 259  # the vocabulary of a target of bytes, its control tokens and the mask
TICKET = Json(
    {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome", "Lima"]}, "note": {"type": "string", "maxLength": 6}},
        "required": ["city", "note"],
        "additionalProperties": False,
    }
)
LIMITS = [{}, {"top_k": 12}, {"top_p": 0.8}, {"top_k": 40, "top_p": 0.9}]


class Knowing(Drafter):
    """Drafts what it was told that each prompt goes on with, but for some places.

    It knows a prompt by what the target feels at its second token, which it keeps as its keys: so it is right
    only where the rows of its context stay those of its block.
    """

    def learn(self, model, prompts, answers, wrong_share, seed=0):
        longest = max(map(len, answers)) + self.config.block_size
        self.truth = torch.tensor([answer + [0] * (longest - len(answer)) for answer in answers])
        dice = torch.Generator().manual_seed(seed)
        wrong = torch.rand(self.truth.shape, generator=dice) < wrong_share
        self.truth[wrong] = (self.truth[wrong] + 2) % self.config.vocab_size
        self.lengths = torch.tensor([len(ids) for ids in prompts])
        self.head = model.head.weight
        beginnings = torch.tensor([ids[:2] for ids in prompts])
        taps = self.config.target_layer_ids
        places = torch.arange(2).expand(len(prompts), -1)
        _, felt = model.forward(beginnings, places, model.new_cache(2), taps)
        self.marks = self._mark(felt)[:, :, 1].flatten(1)
        return self

    def _mark(self, features):
        heads, width = self.config.num_key_value_heads, self.config.head_dim
        return features[..., : heads * width].unflatten(-1, (heads, width)).transpose(1, 2)

    def inject(self, features, positions):
        return [(self._mark(features),) * 2 for _ in self.layers]

    def forward(self, block, at, context, seen):
        who = torch.cdist(context[0][0][:, :, 1].flatten(1), self.marks).argmin(-1)
        places = at[:, 0, 1:] - self.lengths[who, None]
        hidden = torch.zeros_like(block)
        # A token's hidden state is its own row of the head, which hardly another row matches better.
        hidden[:, 0, 1:] = self.head[self.truth[who[:, None], places]]
        return hidden


@pytest.fixture(scope="module")
def byte_model():
    return CausalModel(tiny_llama(vocab_size=BYTES))


@pytest.fixture(scope="module")
def byte_constraints():
    tokenizer = tokenizer_with(None)
    return TokenConstraints(tokenizer, [tokenizer.convert_tokens_to_ids("<|im_end|>")])


def two_hundred():
    dice = random.Random(0)
    beginnings = dice.sample(range(256 * 256), 200)
    return [
        [*divmod(one, 256), *(dice.randrange(256) for _ in range(dice.randrange(10)))] for one in beginnings
    ]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("held", [False, True])
def test_two_hundred_texts_are_those_of_plain_decoding(byte_model, byte_constraints, held, temperature):
    """Token by token, greedy and sampled, whether drafts are right never or often."""
    prompts, stop, most = two_hundred(), [257], 48 if held else 20

    def asks(kind):
        rule = byte_constraints.compile if held else lambda constraint: None
        how = [{"temperature": temperature, "seed": i, **LIMITS[i % 4]} for i in range(200)]
        text = Constraint(TICKET).to_json()
        return [kind(ids, most, rule(text), **one) for ids, one in zip(prompts, how, strict=True)]

    plain = [one.ids for one in generate(byte_model, asks(Ask), stop_ids=stop)]
    assert len(set(map(tuple, plain))) > 150
    config = drafter_config(vocab_size=BYTES, mask_token_id=BYTES_MASK)
    torch.manual_seed(1)
    knowing = Knowing(config).learn(byte_model, prompts, plain, wrong_share=0.3)
    for drafter in (Drafter(config), knowing):
        traces = decode(byte_model, drafter, asks(SpeculativeAsk), stop_ids=stop)
        assert [trace.ids for trace in traces] == plain
    accepted = Counter(n for trace in traces for n in trace.accepted)
    assert min(accepted[n] for n in range(4)) > 100  # every length of agreement, many times


def test_a_sampled_text_depends_on_its_seed_and_on_nothing_around_it(byte_model):
    config = drafter_config(vocab_size=BYTES, mask_token_id=BYTES_MASK)
    prompts = two_hundred()[:12]
    asks = [SpeculativeAsk(ids, 30, temperature=1.0, seed=i) for i, ids in enumerate(prompts)]
    together = decode(byte_model, Drafter(config), asks, stop_ids=[])
    knowing = Knowing(config).learn(byte_model, prompts, [one.ids for one in together], wrong_share=0.5)
    assert decode(byte_model, knowing, asks[::-1], stop_ids=[])[-1].ids == together[0].ids
    for ask, one in list(zip(asks, together, strict=True))[:3]:
        assert decode(byte_model, knowing, [ask], stop_ids=[])[0].ids == one.ids
    other = SpeculativeAsk(prompts[0], 30, temperature=1.0, seed=99)
    assert decode(byte_model, knowing, [other], stop_ids=[])[0].ids != together[0].ids


def allowed_odds(logits, temperature, top_k=8, top_p=1.0, only_even=False):
    """What is left of a distribution, in float64, by the words of its definition."""
    odds = (logits.double() / temperature).softmax(-1)
    if only_even:
        odds = odds * (torch.arange(8) % 2 == 0)
        odds = odds / odds.sum()
    kept, before = set(), 0.0
    for token in odds.argsort(descending=True).tolist()[:top_k]:
        if before < top_p:
            kept.add(token)
        before += float(odds[token])
    odds = odds * torch.tensor([token in kept for token in range(8)])
    return odds / odds.sum()


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 1.3, "top_p": 0.85, "top_k": 6},
        {"temperature": 1.2, "only_even": True},
    ],
)
def test_sampled_tokens_have_the_odds_that_the_target_gives_them(how):
    """Chi-square of the first three tokens together, against odds computed by transformers alone."""
    prompt, count = [1, 5, 3], 4000
    plain = tiny_llama(seed=2, vocab_size=8)
    expected = torch.zeros(8, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        ids = torch.tensor([[*prompt, one, other] for one, other in product(range(8), repeat=2)])
        logits = plain(ids).logits[:, -3:]
    for (one, other), row in zip(product(range(8), repeat=2), logits, strict=True):
        first, second, third = (allowed_odds(place, **how) for place in row)
        expected[one, other] = first[one] * second[other] * third
    model = CausalModel(tiny_llama(seed=2, vocab_size=8))
    rule = OnlyEven if how.get("only_even") else lambda: None
    likeliest = generate(model, [Ask(prompt, 3, rule())], stop_ids=[])[0].ids
    drafter = Knowing(drafter_config(vocab_size=8, mask_token_id=7)).learn(model, [prompt], [likeliest], 0)
    settings = {name: value for name, value in how.items() if name != "only_even"}
    asks = [SpeculativeAsk(prompt, 3, rule(), seed=seed, **settings) for seed in range(count)]
    traces = decode(model, drafter, asks, stop_ids=[])

    found = torch.zeros(8, 8, 8)
    for trace in traces:
        found[tuple(trace.ids)] += 1
    expected = (count * expected).flatten()
    found = found.double().flatten()
    assert found[expected == 0].sum() == 0
    often = expected >= 5
    rest = torch.stack([expected[~often].sum(), found[~often].sum()])
    expected, found = (torch.cat([one[often], rest[i : i + 1]]) for i, one in enumerate((expected, found)))
    expected, found = expected[expected > 0], found[expected > 0]
    statistic = ((found - expected) ** 2 / expected).sum()
    assert torch.special.gammaincc((len(expected) - 1) / torch.tensor(2.0).double(), statistic / 2) > 1e-4

    # Accepted drafts are those that were drawn, and all of them.
    accepted = Counter()
    for trace in traces:
        accepted[min(trace.accepted[0], 2)] += 1
        right = [token == draft for token, draft in zip(trace.ids[1:], likeliest[1:], strict=True)]
        assert min(trace.accepted[0], 2) == right[0] + all(right)
    assert min(accepted[n] for n in range(3)) > count / 50


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_smollm2_writes_what_it_writes_without_the_starting_drafter(temperature):
    target = load_target(Target(dtype="float32"))
    drafter = load(find("smollm2"))
    said = ["What is two plus two?", "A city and a word on it, please.", "Tell me how a kettle works."]
    prompts = [
        target.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in said
    ]
    constraint = Constraint(TICKET).to_json()
    for held in (False, True):

        def asks(kind, held=held):
            rule = target.constraints.compile if held else lambda constraint: None
            how = {"temperature": temperature, "top_p": 0.9}
            return [kind(ids, 48, rule(constraint), seed=i, **how) for i, ids in enumerate(prompts)]

        plain = generate(target.model, asks(Ask), stop_ids=target.stop_ids)
        traces = decode(target.model, drafter, asks(SpeculativeAsk), stop_ids=target.stop_ids)
        assert [trace.ids for trace in traces] == [one.ids for one in plain]
        assert any(n for trace in traces for n in trace.accepted)
