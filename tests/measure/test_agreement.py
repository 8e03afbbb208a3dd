"""Results that cancelled: what is nothing but rounding is no scale for errors."""

from __future__ import annotations

import numpy as np

from mcfuser.measure.agreement import disagreement


def test_a_result_that_cancelled_is_judged_by_what_was_rounded() -> None:
    """A sum of deviations from the mean is zero, but for the rounding of its terms."""
    expected, allowed = np.array([1e-17, -2e-17]), np.array([1.0, 2.0])
    found = np.array([1e-7, 3e-7])
    error = disagreement(found, expected, allowed, 1e-5, True)
    assert isinstance(error, float) and error < 1e-6
    assert "2 elements too far off" in str(
        disagreement(found * 1e4, expected, allowed, 1e-5, False)
    )
    assert "its error is" in str(disagreement(found * 1e4, expected, allowed, 1e-5, True))


def test_elements_that_cancelled_are_no_scale_for_others() -> None:
    expected, allowed = np.array([1e-17, 1.0]), np.array([1.0, 1.0])
    assert disagreement(np.array([1e-6, 1.0]), expected, allowed, 1e-5, True) == 0.0
    assert "its error is 1.0e-04" in str(
        disagreement(np.array([1e-6, 1.0001]), expected, allowed, 1e-5, True)
    )


def test_what_float32_cannot_hold_may_be_zero() -> None:
    expected = np.array([4e-78, -2e-77])
    assert disagreement(np.zeros(2), expected, np.abs(expected), 1e-5, True) == 0.0


def test_an_error_of_just_the_limit_is_none_too_many() -> None:
    one = np.ones(1)
    assert disagreement(np.array([1.5]), one, one, 0.5, True) == 0.5
    assert "its error is" in str(disagreement(np.array([1.5]), one, one, 0.25, True))
