"""Which checkpoint is kept."""

from synthspec.acceptance.choose import choose


def entry(step, inside, general):
    """A log entry; `general` holds the drafts accepted in ten steps of each general request."""
    counts = {"general": {"accepted": general, "steps": [10] * len(general)}}
    return {"step": step, "accept_len": {"in_domain": inside}, "counts": counts if general else {}}


def test_the_best_checkpoint_is_chosen_among_those_that_forgot_nothing():
    knew = [4, 6, 8, 10, 6]
    start = entry(0, 1.1, knew)
    noise, loss = [5, 5, 8, 9, 6], [3, 4, 7, 9, 5]  # some requests lost and some gained; all of them lost
    assert choose([start, entry(50, 2.0, knew), entry(100, 3.0, noise), entry(150, 3.5, loss)]) == 100
    assert choose([start, entry(50, 2.0, loss), entry(100, 3.0, [1, 2, 3, 4, 5])]) == 50
    assert choose([start, entry(50, 3.0, knew), entry(100, 3.0, knew)]) == 100
    assert choose([entry(0, 1.0, [9]), entry(50, 2.0, [9]), entry(100, 3.0, [8])]) == 100  # one says nothing
    assert choose([entry(0, 1.0, []), entry(50, 2.0, []), entry(100, 1.5, [])]) == 50
    assert choose([{"step": 0}, {"step": 50}]) == 50
