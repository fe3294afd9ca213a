"""Keys for servers and hubs."""

import os

import pytest
import yaml

from synthspec.errors import UserError
from synthspec.keys import read_key, unlock_hub
from synthspec.run import open_run
from synthspec.spec import Key, address
from synthspec.stages import facts


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (
            Key(env="SYNTHSPEC_NO_SUCH"),
            r"worker\.key\.env: the environment variable SYNTHSPEC_NO_SUCH holds no key",
        ),
        (Key(file="none.txt"), "there is no such file"),
        (Key(file="empty.txt"), r"worker\.key\.file: empty\.txt holds no key"),
        (Key(file="../key.txt"), "leads out of the project"),
        (Key(file="two.txt"), "holds no key; put it there, on one line"),
    ],
)
def test_a_key_that_is_not_there_is_told_without_showing_any(tmp_path, key, words):
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "two.txt").write_text("tell\nnobody")
    with pytest.raises(UserError, match=words) as caught:
        read_key(key, tmp_path, "worker.key")
    assert "nobody" not in str(caught.value)


def test_a_key_is_read_from_its_place(tmp_path, monkeypatch):
    (tmp_path / "key.txt").write_text("tell-nobody\n")
    monkeypatch.setenv("SYNTHSPEC_KEY", " tell-nobody ")
    for key in (Key(file="key.txt"), Key(env="SYNTHSPEC_KEY")):
        assert read_key(key, tmp_path, "worker.key") == "tell-nobody"


def test_the_hub_finds_its_key_where_the_spec_names_something_of_it(tmp_path, monkeypatch):
    import huggingface_hub

    from synthspec.project import create

    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("MY_HUB_KEY", "hf_tell-nobody")
    create(tmp_path / "desk")
    file = tmp_path / "desk" / "synthspec.yaml"
    spec = yaml.safe_load(file.read_text())
    spec["hub"] = {"key": {"env": "MY_HUB_KEY"}}
    file.write_text(yaml.safe_dump(spec))
    facts.target_of(open_run(file))
    assert os.environ["HF_TOKEN"] == ""  # nothing of the hub is named
    spec["target"] = {"model": "owner/name", "revision": "0" * 40}
    file.write_text(yaml.safe_dump(spec))
    facts.target_of(open_run(file))
    assert huggingface_hub.get_token() == "hf_tell-nobody"


def test_a_hub_without_a_key_is_left_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "own")
    unlock_hub(None, tmp_path)
    assert os.environ["HF_TOKEN"] == "own"


@pytest.mark.parametrize(
    "spec",
    [
        {"worker": {"kind": "sglang", "urls": ["http://gpu-1:30000"], "key": "tell-nobody"}},
        {"worker": {"kind": "sglang", "urls": ["http://gpu-1:30000/?key=tell-nobody"]}},
        {"worker": {"kind": "sglang", "urls": ["http://me:tell-nobody@gpu-1:30000"]}},
        {"hub": {"key": "tell-nobody"}},
        {"hub": "tell-nobody"},
        {"train": {"features": {"url": "http://gpu-1:1", "key": "tell-nobody"}}},
    ],
)
def test_a_key_in_the_wrong_place_is_not_repeated(tmp_path, spec):
    base = {"name": "s", "prompts": [{"name": "p", "files": ["p"], "licence": "MIT"}], "match": ["p"]}
    (tmp_path / "synthspec.yaml").write_text(yaml.safe_dump({**base, "grammars": ["g"], **spec}))
    with pytest.raises(UserError) as told:
        open_run(tmp_path)
    assert "tell-nobody" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    ["http://..:80", f"http://{'x' * 3000}", "http://\x1b[31mx", "ftp://x", "http://", "http://a:99999", "a b"],
)
def test_what_is_no_address_is_told(url):
    with pytest.raises(ValueError, match="is no address"):
        address(url)


@pytest.mark.parametrize(
    "url", ["http://gpu-1:30000", "https://a.b.example/", "http://[::1]:1", "http://10.0.0.1:1"]
)
def test_what_is_an_address_is_taken(url):
    assert address(url) == url


def test_plan_sees_that_keys_are_there(tmp_path, monkeypatch):
    base = {"name": "s", "prompts": [{"name": "p", "files": ["p"], "licence": "MIT"}], "match": ["p"]}
    key = {"env": "SYNTHSPEC_NO_SUCH"}
    spec = {**base, "grammars": ["g"], "hub": {"key": key}}
    (tmp_path / "synthspec.yaml").write_text(yaml.safe_dump(spec))
    with pytest.raises(UserError, match=r"hub\.key\.env: .* SYNTHSPEC_NO_SUCH holds no key"):
        facts.keys(open_run(tmp_path))
