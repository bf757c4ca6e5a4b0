"""What the attempts of a trial say about it."""

from optuna.trial import TrialState, create_trial

from softprune.train.sweep.study import slots_of

WAITING, RUNNING, FAIL, COMPLETE = TrialState.WAITING, TrialState.RUNNING, TrialState.FAIL, TrialState.COMPLETE


def attempts(*rows):
    """Trials of a study, in their order: state, slot, the number of the attempt before, and more attributes."""
    made = []
    for number, (state, slot, after, *more) in enumerate(rows):
        attributes = {"slot": slot, **({} if after is None else {"after": after}), **(more[0] if more else {})}
        trial = create_trial(state=state, value=1.0 if state == COMPLETE else None, user_attrs=attributes)
        trial.number = number
        made.append(trial)
    return made


def test_a_trial_whose_worker_died_is_to_go_on_until_its_retries_are_used_up():
    rows = [(FAIL, 0, None), (FAIL, 0, 0)]
    for retries, state in ((0, "failed"), (1, "failed"), (2, "waiting")):
        (slot,) = slots_of(attempts(*rows), retries=retries)
        assert slot.state == state and slot.needs_attempt == (state == "waiting") and slot.deaths == 2
    (given_up,) = slots_of(attempts(*rows), retries=1)
    assert given_up.ended and given_up.reason == "its worker died 2 times"


def test_being_asked_to_stop_is_no_death():
    stopped = [(FAIL, 0, None, {"interrupted": True}), (FAIL, 0, 0, {"interrupted": True})]
    (slot,) = slots_of(attempts(*stopped), retries=0)
    assert slot.needs_attempt and slot.deaths == 0 and slot.reason == ""


def test_an_error_of_its_own_ends_a_trial_at_once():
    (slot,) = slots_of(attempts((FAIL, 0, None, {"error": "ValueError: no"})), retries=9)
    assert slot.state == "failed" and slot.ended and not slot.needs_attempt and slot.reason == "ValueError: no"


def test_of_two_next_attempts_the_older_counts():
    trials = attempts((FAIL, 0, None), (COMPLETE, 1, None), (RUNNING, 0, 0), (WAITING, 0, 0))
    first, second = slots_of(trials, retries=1)
    assert [trial.number for trial in first.attempts] == [0, 2] and first.state == "running"
    assert second.state == "complete"


def test_trials_of_others_are_passed_over():
    foreign = create_trial(state=WAITING)
    foreign.number = 7
    assert [slot.number for slot in slots_of([foreign, *attempts((WAITING, 0, None))], retries=0)] == [0]
