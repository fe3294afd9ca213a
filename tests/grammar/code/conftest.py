import random
import re
from functools import lru_cache

import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import (
    AlternativeNode,
    GrammarParser,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleRefNode,
    gbnf_to_lark,
)
from pydantic import TypeAdapter

from synthspec.grammar.bytewise import byte_matcher
from synthspec.grammar.code import Code, grammar
from synthspec.grammar.tokens import ll_tokenizer

END = 2  # <|im_end|>
CHARACTERS = [*map(chr, range(32, 127)), *"\n\té€😀"]


def code(**keys):
    return TypeAdapter(Code).validate_python(keys)


def lark(one):
    """The constraint of some code for llguidance."""
    if one.language == "regex":
        return f"start: T\nT: /{grammar(one)}/"
    return gbnf_to_lark(grammar(one))


def accepts(matcher, text):
    """Whether a matcher over bytes takes a text whole and lets it end there."""
    matcher = matcher.deep_copy()
    data = text.encode()
    return matcher.try_consume_tokens([*data]) == len(data) and matcher.is_accepting()


def engine(one):
    return byte_matcher(lark(one))


@lru_cache(maxsize=32)
def parsed(said):
    return GrammarParser().parse(said)


@lru_cache(maxsize=4096)
def of_class(expression):
    return [character for character in CHARACTERS if re.fullmatch(expression, character)]


def drawn(one, seed):
    """A text of some code's grammar, every way to go on as likely."""
    dice = random.Random(seed)
    rules = parsed(grammar(one))

    def text(node):
        match node:
            case RuleRefNode():
                return text(rules[node.name].alternatives)
            case LiteralNode():
                return node.value.encode().decode("unicode_escape")
            case RegexNode():
                return dice.choice(of_class(node.rx))
            case AlternativeNode():
                return text(dice.choice(node.alternatives))
            case RepetitionNode():
                count = min(node.max_times, node.min_times + dice.choice((0, 0, 0, 1, 2)))
                return "".join(text(node.node) for _ in range(count))
            case _:
                return "".join(map(text, node.children()))

    return text(rules["root"].alternatives)


@pytest.fixture(scope="session")
def walk(smollm2_tokenizer):
    """Texts that a constraint lets a target without a mind write, those that end within `most` tokens."""

    def walks(one, number=40, most=400):
        tokenizer = ll_tokenizer(smollm2_tokenizer)
        first = LLMatcher(tokenizer, lark(one), log_level=0)
        assert not first.is_error(), first.get_error()
        texts = []
        for seed in range(number):
            dice = random.Random(seed)
            matcher, ids = first.deep_copy(), []
            mask = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.int32)
            for _ in range(most):
                matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
                if END in allowed and (len(allowed) == 1 or dice.random() < 0.2):
                    texts.append(tokenizer.decode_bytes(ids).decode())
                    break
                token = int(dice.choice(allowed[allowed != END]))
                assert matcher.consume_token(token)
                ids.append(token)
        return texts

    return walks
