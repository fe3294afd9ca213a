from synthspec.dflash.features import ROWS_AT_ONCE, batches


def test_batches_hold_documents_that_begin_alike():
    a, b = list(range(30)), list(range(30, 60))
    documents = [beginning + [n] * (n % 7) for n in range(50) for beginning in (a, b)]
    strangers = [[900 + n] * 40 for n in range(5)]
    found = batches(documents + strangers)
    assert sorted(place for places in found for place in places) == list(range(105))
    kinds = [{(documents + strangers)[place][0] for place in places} for places in found]
    assert all(len(kind) == 1 for kind in kinds[:-1])
    assert kinds[-1] == {900 + n for n in range(5)}
    for places in found:
        lengths = [len((documents + strangers)[place]) for place in places]
        assert lengths == sorted(lengths)
        assert len(places) <= ROWS_AT_ONCE
