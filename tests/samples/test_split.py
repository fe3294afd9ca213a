import random

from synthspec.samples.split import hold_out


def split(n=100, size=1, share=0.2, most=100, seed=0, grammars=None):
    ids = [f"id{place}" for place in range(n)]
    labels = [place // size for place in range(n)]
    return ids, labels, hold_out(ids, grammars or ["g"] * n, labels, share, most, seed)


def test_the_share_is_held_out_of_each_grammar_and_never_more_than_the_most():
    names = ["a"] * 50 + ["b"] * 30
    _, _, held = split(80, grammars=names)
    assert (sum(held[:50]), sum(held[50:])) == (10, 6)
    _, _, held = split(80, grammars=names, most=7)
    assert (sum(held[:50]), sum(held[50:])) == (7, 6)
    assert not any(split(share=0.0)[2])


def test_a_cluster_is_never_divided():
    _, labels, held = split(100, size=3, grammars=[("a", "b")[place % 2] for place in range(100)])
    assert any(held)
    for label in set(labels):
        assert len({out for out, own in zip(held, labels, strict=True) if own == label}) == 1


def test_a_cluster_larger_than_the_share_is_trained_on():
    assert not any(split(20, size=20)[2])


def test_order_and_labels_do_not_matter_but_the_seed_does():
    ids, labels, held = split(100, size=2)
    rows = list(zip(ids, labels, held, strict=True))
    random.Random(0).shuffle(rows)
    again = hold_out([row[0] for row in rows], ["g"] * 100, [1000 - row[1] for row in rows], 0.2, 100, 0)
    assert again == [row[2] for row in rows]
    assert split(100, size=2, seed=1)[2] != held
