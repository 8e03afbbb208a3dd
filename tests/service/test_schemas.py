"""Options as people write them."""

import pytest
from pydantic import ValidationError

from mcfuser.arguments.shapes import shapes as parse_shapes
from mcfuser.extents import ExtentRange
from mcfuser_service.schemas import JobOptions
from mcfuser_service.work import work_key


def test_shapes_are_read() -> None:
    assert parse_shapes(["input=1x128", "a=b:0=7", "mask=1x1x2"]) == {
        "input": (1, 128), "a=b:0": (7,), "mask": (1, 1, 2),
    }  # fmt: skip


@pytest.mark.parametrize(
    "word", ["", "input", "input=", "=1x2", "x=1x", "x=00", "x=-1", "x=1.5", "x=²", "x=n", "x=1X2",
             "x=" + "9" * 5000],
)  # fmt: skip
def test_a_malformed_shape_is_named(word: str) -> None:
    with pytest.raises(ValueError, match="not of the form input=1x128"):
        parse_shapes([word])


def test_a_job_takes_ranges_of_extents() -> None:
    options = JobOptions(shape=["x=1..4x16"], buckets=2)
    assert options.shapes == {"x": (ExtentRange(1, 4), 16)}
    assert work_key("a" * 64, options) != work_key("a" * 64, JobOptions(shape=["x=1..4x16"]))
    for count in (0, 33):
        with pytest.raises(ValidationError, match="buckets"):
            JobOptions(buckets=count)


def test_an_input_has_one_shape() -> None:
    with pytest.raises(ValueError, match="'x' is given twice"):
        parse_shapes(["x=1", "x=2"])


def test_options_that_mean_the_same_are_equal() -> None:
    one = JobOptions(device="h100", shape=["b=1", "a=2"], timeout="30s")
    two = JobOptions(device="nvidia/h100", shape=["a=2", "b=1"], timeout=30)
    assert one == two and one.model_dump() == two.model_dump()
    assert one.shapes == {"a": (2,), "b": (1,)}


@pytest.mark.parametrize(
    "bad", [{"seed": -1}, {"trials": 0}, {"timeout": 0}, {"timeout": "soon"}, {"timeout": "nan"},
            {"device": "tpu"}, {"unroll": 4}, {"precision": "fp8"}, {"precision": "float16"},
            {"in_place": ["past"]}, {"in_place": ["a=b", "a=c"]}],
)  # fmt: skip
def test_other_options_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        JobOptions.model_validate(bad)


def test_a_kept_job_s_options_are_read_back() -> None:
    options = JobOptions(
        device="l4",
        shape=["x=1x2"],
        seed=3,
        trials=9,
        timeout=5,
        precision="bf16",
        in_place=["past=present"],
    )
    assert JobOptions(**options.model_dump(mode="json")) == options


def test_work_depends_on_model_and_options_alone() -> None:
    key = work_key("a" * 64, JobOptions(shape=["b=1", "a=2"]))
    assert key == work_key("a" * 64, JobOptions(shape=["a=2", "b=1"]))
    others = [work_key("b" * 64, JobOptions(shape=["a=2", "b=1"]))]
    different = ({}, {"seed": 1}, {"device": "l4"}, {"precision": "fp16"}, {"precision": "bf16"},
                 {"in_place": ["past=present"]})  # fmt: skip
    others += [work_key("a" * 64, JobOptions(**o)) for o in different]
    assert len({key, *others}) == 8
