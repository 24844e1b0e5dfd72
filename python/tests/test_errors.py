"""Every failure is an exception that names what was expected and what was found."""

from __future__ import annotations

import pickle

import pytest

import fp4moe
from fp4moe import errors


@pytest.mark.parametrize(
    ("code", "kind", "builtin"),
    [
        (1, fp4moe.FailedError, OSError),
        (2, fp4moe.UsageError, ValueError),
        (3, fp4moe.InvalidInputError, ValueError),
        (4, fp4moe.UnsupportedError, RuntimeError),
        (5, fp4moe.MismatchError, ValueError),
        (6, fp4moe.ResourceExhaustedError, MemoryError),
        (7, fp4moe.UnavailableError, RuntimeError),
    ],
)
def test_a_code_is_a_class_and_the_builtin_callers_expect(code, kind, builtin):
    result = errors.make(code, "a.b", "it broke", expected="x", found="y", remedy="Mend it")
    assert type(result) is kind and isinstance(result, builtin) and isinstance(result, fp4moe.Error)
    assert result.code == code and result.id == "a.b" and result.record is None
    assert str(result) == "a.b: it broke; expected x, found y. Mend it"


def test_an_error_survives_pickling():
    result = errors.make(3, "a.b", "it broke", path="/f", tensor="t", expected="x", found="y")
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is type(result) and str(again) == str(result)
    assert again.__dict__ == result.__dict__


def test_an_interrupt_is_the_keyboards():
    assert isinstance(errors.make(130, "interrupted", "stopped"), KeyboardInterrupt)


def test_the_line_is_that_of_the_library(tmp_path):
    with pytest.raises(fp4moe.Error) as caught:
        fp4moe.Model.open(tmp_path / "nothing")
    why = caught.value
    assert str(tmp_path) in str(why) and str(why).startswith(why.id)
    rebuilt = errors.make(
        why.code,
        why.id,
        why.message,
        path=why.path,
        tensor=why.tensor,
        expected=why.expected,
        found=why.found,
        remedy=why.remedy,
    )
    assert str(rebuilt) == str(why)


@pytest.mark.parametrize("path", [None, 3, ["a"], object()])
def test_what_is_no_path_is_a_type_error(path):
    with pytest.raises(TypeError):
        fp4moe.Model.open(path)


@pytest.mark.parametrize(
    ("options", "id"),
    [
        ({"threads": -1}, "options.negative"),
        ({"threads": 100000}, "options.threads"),
        ({"tp": (2, 2)}, "options.rank"),
        ({"ep": (0, -3)}, "options.negative"),
        ({"engine": "warp"}, "engine.unknown"),
        ({"backend": "NOBODY"}, None),
        ({"policy": "1999-01-01"}, None),
        ({"device": "toaster"}, None),
        ({"numerics": "lucky"}, "numerics.unknown"),
        ({"weights": "heavy"}, "layer.weights"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_accepted(checkpoint, options, id):
    with pytest.raises(fp4moe.Error) as caught:
        fp4moe.Layer.open(checkpoint, 0, **options)
    assert caught.value.expected and caught.value.found
    assert id is None or caught.value.id == id


@pytest.mark.parametrize("number", [-1, 2, 10**12])
def test_a_layer_that_is_not_there_is_refused(checkpoint, number):
    with pytest.raises(fp4moe.UsageError):
        fp4moe.Model.open(checkpoint).layer(number)


@pytest.mark.parametrize(
    "options", [{"threads": "two"}, {"tp": 3}, {"engine": None}, {"speed": 9}, {"tp": (0, 2**70)}]
)
def test_options_of_a_wrong_type_are_type_errors(checkpoint, options):
    with pytest.raises(TypeError):
        fp4moe.Layer.open(checkpoint, 0, **options)


def test_old_names_of_errors_warn_and_mean_the_new_ones() -> None:
    for old, new in (("ExhaustedError", "ResourceExhaustedError"), ("LackingError", "UnavailableError")):
        for module in (fp4moe, fp4moe.errors):
            with pytest.warns(DeprecationWarning, match=new):
                assert getattr(module, old) is getattr(fp4moe, new)
    with pytest.raises(AttributeError):
        fp4moe.errors.NoSuchError  # noqa: B018
