"""Constants are found again from the candidates that they have timed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from mcfuser.backends.cpu.backend import CPU
from mcfuser.backends.cuda.backend import CUDA
from mcfuser.devices.catalogue import device_named
from mcfuser.errors import InputError
from mcfuser.model.fitted import NAMES, costs
from mcfuser.tune.refit import Ranking, Refit, refit, samples
from tests.support.refitted import CHAINS, COUNT, DEVICE, all_kept, kept, times, true_constants


@cache
def found_from_true() -> Refit:
    """What a fit to candidates of the true constants finds: for several tests."""
    return refit(all_kept(true_constants()), DEVICE, CUDA)


@pytest.mark.thorough
def test_constants_that_are_wrong_for_a_device_are_found() -> None:
    true, found = true_constants(), found_from_true()
    assert found.candidates == COUNT * len(CHAINS) and len(found.chains) == len(CHAINS)
    assert found.better and found.after.spearman > found.before.spearman
    assert found.after.spearman > 0.9 and found.after.top < 1.05 and not found.few
    for chain in CHAINS[::2]:
        seconds, before = times(chain, true), times(chain, dict(DEVICE.costs))
        anew = times(chain, found.constants)
        off, was = (np.median(np.abs(np.log(t / seconds))) for t in (anew, before))
        assert off < 0.2 and off < 0.75 * was, chain.name


def test_constants_that_are_right_already_are_not_worse_for_it() -> None:
    found = refit(all_kept(dict(DEVICE.costs)), DEVICE, CUDA)
    assert found.before == Ranking(pytest.approx(1), pytest.approx(1)) and not found.better


def test_terms_that_occur_nowhere_keep_their_constants() -> None:
    every = all_kept(true_constants())
    found, current = found_from_true(), dict(costs(DEVICE))
    events = np.vstack([s.sample.events for s in samples(every, DEVICE, CUDA)[0]])
    absent = [n for n, used in zip(NAMES, events.any(axis=0), strict=True) if not used]
    assert absent and set(found.constants) == set(current)
    assert {n: found.constants[n] for n in absent} == {n: current[n] for n in absent}


def test_a_device_s_own_constants_are_not_scaled() -> None:
    own = replace(DEVICE, costs=(("launch", 2e-6),), readings=())
    assert costs(own) == {"launch": 2e-6}
    assert own.constants_key != DEVICE.constants_key
    assert replace(own, readings=(("launch", 1e-6),)).constants_key != own.constants_key
    assert device_named("cpu").constants_key == ""


def test_too_few_candidates_are_refused() -> None:
    true = true_constants()
    with pytest.raises(InputError, match=r"180 candidates of 3 chains .* needs 100 of 4"):
        refit([kept(chain, true) for chain in CHAINS[:3]], DEVICE, CUDA)
    with pytest.raises(InputError, match=r"65 candidates of 5 chains .* tune more chains"):
        refit(all_kept(true, 13), DEVICE, CUDA)
    with pytest.raises(InputError, match="0 candidates of 0 chains"):
        refit([], DEVICE, CUDA)


def test_a_chain_counts_once_and_with_few_candidates_not_at_all() -> None:
    true = true_constants()
    one, few = kept(CHAINS[0], true), kept(CHAINS[0], true, 5)
    found, left = samples([few, one, kept(CHAINS[1], true, 5), one], DEVICE, CUDA)
    assert [s.name for s in found] == [CHAINS[0].name] and left == (CHAINS[1].name,)
    failed = [replace(t, seconds=None, failed="wrong") for t in one[1]]
    assert samples([(one[0], failed)], DEVICE, CUDA)[0] == []
    others = [replace(t, knobs={"none": 1}) for t in one[1]]
    assert samples([(one[0], others)], DEVICE, CUDA)[0] == []


def test_the_cpu_s_model_has_none() -> None:
    with pytest.raises(InputError, match="the model of cpu has no constants"):
        refit([], device_named("cpu"), CPU)


def test_better_means_better_ranks_and_no_worse_choice() -> None:
    made = Refit({}, (), 0, (), Ranking(0.5, 1.1), Ranking(0.6, 1.1))
    assert made.better
    assert not replace(made, after=Ranking(0.505, 1.0)).better
    assert not replace(made, after=Ranking(0.9, 1.2)).better
