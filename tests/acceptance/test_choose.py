"""Which checkpoint is kept, and when training ends."""

from synthspec.acceptance.choose import choose, drifted


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


def test_training_ends_when_general_acceptance_is_lost_for_good():
    knew = [4, 6, 8, 10, 6]
    log = [entry(0, 1.1, knew)]
    noise, loss, more = [5, 5, 8, 9, 6], [3, 4, 7, 9, 5], [1, 3, 5, 7, 3]
    for step, general in enumerate((loss, noise, loss, loss), 1):
        assert drifted(log, 0.05, 2) is None
        log.append(entry(step, 2.0, general))
    assert drifted(log, 0.05, 2) == (
        "general acceptance fell by more than 0.05 at 2 checkpoints in a row, "
        "at the last by 0.12 (0.10 to 0.16)"
    )
    assert drifted(log, 0.05, 3) is None  # the second was noise
    assert drifted(log, 0.2, 2) is None  # so much may be lost
    log.append(entry(5, 2.0, more))
    assert drifted(log, 0.2, 2) is None
    assert drifted([*log, entry(6, 2.0, more)], 0.2, 2)
    few = [entry(0, 1.1, [9]), entry(1, 2.0, [1]), entry(2, 2.0, [1])]
    assert drifted(few, 0.05, 2) is None  # one request says nothing
    assert drifted([{"step": 0}, {"step": 5}], 0.05, 1) is None
