import random

from synthspec.samples.dedup import clusters, jaccard, near, repeats, text_shingles, token_shingles


def test_a_planted_near_duplicate_is_found_among_many_and_the_same_each_time():
    dice = random.Random(0)
    rows = [[dice.randrange(500) for _ in range(60)] for _ in range(200)]
    twin = [*rows[17][:30], 501, *rows[17][31:]]
    rows.insert(150, twin)
    shingles = [token_shingles(row) for row in rows]
    found = repeats(shingles, 0.8)
    assert [place for place, repeat in enumerate(found) if repeat] == [150]
    assert repeats(shingles, 0.8) == found
    assert near([shingles[150]], shingles, 0.8) == [[17, 150]]
    assert near([shingles[150]], shingles, 0.99) == [[150]]


def test_similarity_is_exact_and_not_estimated():
    one, two = {"a", "b", "c", "d"}, {"a", "b", "c", "e"}
    assert jaccard(one, two) == 3 / 5
    assert near([one], [two], 0.6) == [[0]]
    assert near([one], [two], 0.61) == [[]]


def test_a_repeat_of_a_repeat_counts_against_what_was_kept():
    rows = [set("abcdefghij"), set("abcdefghik"), set("abcdefghlk")]
    assert repeats(rows, 0.8) == [False, True, False]


def test_near_ones_chain_into_one_cluster():
    rows = [set("abcdefghlk"), set("xyz"), set("abcdefghij"), set("abcdefghik")]
    assert clusters(rows, 0.8) == [0, 1, 0, 0]


def test_shingles_of_short_and_strange_texts():
    assert text_shingles("Hello, HELLO!") == {"hello", "hello hello"}
    assert text_shingles("?!") == {"?!"}
    assert text_shingles("北京 天气") == {"北京", "天气", "北京 天气"}
    assert token_shingles([]) == {""}
    assert token_shingles([1, 2]) == {"1 2"}
    assert token_shingles([1, 2, 3, 4]) == {"1 2 3", "2 3 4"}
    assert repeats([token_shingles([]), token_shingles([])], 0.8) == [False, True]
    assert near([], [], 0.5) == []
