"""What we write is also read by the engine of SGLang and vLLM, where it is installed."""

import pytest

from synthspec.grammar import text
from synthspec.grammar.code import grammar
from tests.grammar.code.conftest import code
from tests.grammar.code.test_sql import TABLES

xgrammar = pytest.importorskip("xgrammar")

CODES = [
    code(language="sql", tables=TABLES, statements=["select", "insert", "update", "delete"]),
    code(language="shell", commands={"git": ["log", "-n", "--format="], "ls": []}, pipes=True, fence=True),
    code(language="regex", pattern=r"^(?:yes|no|)[^\]a-c-]\d{2}/\S\t?$"),
    code(language="ebnf", grammar='root ::= [\\u00e9x] "\\u0022" | root "+" root'),
]


@pytest.mark.parametrize("one", CODES, ids=lambda one: one.language)
def test_texts_of_one_engine_are_texts_of_the_other(walk, one, smollm2_tokenizer):
    said = grammar(one)
    read = xgrammar.Grammar.from_regex(said) if one.language == "regex" else xgrammar.Grammar.from_ebnf(said)
    info = xgrammar.TokenizerInfo.from_huggingface(smollm2_tokenizer)
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_grammar(read)
    texts = walk(one, number=10)
    assert texts
    for written in texts:
        matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
        assert matcher.accept_string(written)


def test_a_function_and_a_template_are_read():
    xgrammar.Grammar.from_ebnf(grammar(code(language="python", imports=["math"])))
    xgrammar.Grammar.from_ebnf(text.grammar(['Dear <redacted:name>,\n"<redacted>" \\ é']))
