"""Settings without sense are refused by name where they enter, before anything runs."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import basinax
from basinax import (
    BFGS,
    FIRE,
    FIRE2,
    LBFGS,
    Adam,
    AllOf,
    AnyOf,
    Armijo,
    BFGSLineSearch,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRowNorm,
    ClipByValue,
    ConjugateGradient,
    EnergyChange,
    ForceNorm,
    GradientDescent,
    LBFGSLineSearch,
    LevenbergMarquardt,
    MaxDisplacement,
    MaxForce,
    MaxStepSize,
    MDMin,
    MoreThuente,
    RMSForce,
    SystemIndex,
    clip_by_layer_norm,
    clip_by_norm,
    relax,
    segment,
)

NO_NUMBERS: list[Any] = [None, "0.1", 1j, True, object(), [[1.0], [1.0, 2.0]], np.array(["a"])]
HUGE = 10**400
"""An integer that no float can hold."""


class Kind(NamedTuple):
    """What a setting may be, by examples."""

    senseless: list[Any]
    sensible: list[Any]


def of_arrays(*numbers: float) -> list[Any]:
    """Numbers, and arrays in which one of them is the second of three."""
    arrays = [np.array([0.5, x, 0.5]) for x in numbers]
    return [*numbers, *arrays, [0.5, numbers[0]], jnp.asarray(numbers[0]), jnp.asarray(arrays[0])]


NOT_POSITIVE = of_arrays(-0.1, 0.0, np.nan, -np.inf)
KINDS = {
    "positive": Kind([*NO_NUMBERS, HUGE, *NOT_POSITIVE, np.inf], [0.3, np.full(3, 0.3)]),
    "limit": Kind([*NO_NUMBERS, HUGE, *NOT_POSITIVE], [0.3, np.inf, np.array([0.3, np.inf])]),
    "size": Kind([*NO_NUMBERS, HUGE, *of_arrays(-0.1, np.nan)], [0, 0.01, np.full(3, 0.01)]),
    "growth": Kind([*NO_NUMBERS, HUGE, *of_arrays(-1.0, 0.9, np.nan, np.inf)], [1, 1.2]),
    "shrinking": Kind([*NO_NUMBERS, HUGE, *of_arrays(-0.1, 0.0, np.nan, 1.1)], [1, 0.5]),
    "share": Kind([*NO_NUMBERS, HUGE, *of_arrays(-0.1, np.nan, 1.1, np.inf)], [0, 0.5, 1]),
    "decay": Kind([*NO_NUMBERS, HUGE, *of_arrays(-0.1, np.nan, 1.0, np.inf)], [0, 0.5]),
    "part": Kind([*NO_NUMBERS, HUGE, *of_arrays(-0.1, 0.0, np.nan, 1.0)], [0.25, np.full(3, 0.25)]),
    "finite": Kind([*NO_NUMBERS, HUGE, *of_arrays(np.nan, np.inf)], [-2.0, 0, np.full(3, 0.1)]),
    "count": Kind([*NO_NUMBERS, HUGE, -1, 2.5, np.nan, np.inf, 2**31, np.array([1, -1])], [0, 7]),
    "number": Kind([*NO_NUMBERS, HUGE, -1, 0, 2.5, np.nan, 2**31, np.array([1, 0])], [1, 7]),
    "one number": Kind([*NO_NUMBERS[1:-1], HUGE, -1, 0, 2.5, np.nan, 2**31], [1]),
    "steps": Kind([*NO_NUMBERS, -1, 2.5, np.nan, np.inf, np.array([1, -1])], []),
    "clip": Kind([*NO_NUMBERS, HUGE, -0.1, np.nan, np.float32(-1)], [0, 0.5, np.inf]),
    "switch": Kind([None, 1, 0.0, "yes", np.nan], [True, False]),
    "order": Kind([0.5, 0, -1, np.nan, "two", True], [1, 2.5, "inf", "-inf", None]),
    "search": Kind([None, "armijo", 0.1, FIRE(), Armijo], [Armijo(), MoreThuente()]),
    "function": Kind([None, 0.05, "energy"], []),
    "criterion": Kind([0.05, "rms", (MaxForce(),), MaxForce], []),
}
KINDS["tolerance"] = KINDS["size"]
KINDS["a number of relax"] = Kind(KINDS["size"].senseless[1:], [])  # None is the default


class Row(NamedTuple):
    """A class or function, and of which kind each of its settings is."""

    make: Callable[..., Any]
    kinds: dict[str, str]
    others: Mapping[str, Any] = MappingProxyType({})
    """What has no default."""


X = np.ones((3, 3))
SEARCHES = {"maxstep": "limit", "c1": "part", "max_trials": "number"}
FIRES = {
    "dt": "positive",
    "maxstep": "limit",
    "dtmax": "limit",
    "Nmin": "count",
    "finc": "growth",
    "fdec": "shrinking",
    "astart": "share",
    "fa": "share",
}
RELAX = {
    "fmax": "a number of relax",
    "convergence": "criterion",
    "max_steps": "steps",
    "keep_best": "switch",
    "has_extras": "switch",
    "throw": "switch",
    "value_and_gradient": "function",
}


def run(value_and_gradient=lambda x: (jnp.zeros(1), x), **settings):
    return relax(value_and_gradient, X, FIRE(), **settings)


TABLE = {
    "FIRE": Row(FIRE, FIRES | {"a": "share"}),
    "FIRE2": Row(FIRE2, FIRES | {"dtmin": "size", "use_abc": "switch"}),
    "MDMin": Row(MDMin, {"dt": "positive", "maxstep": "limit"}),
    "Adam": Row(
        Adam, {"learning_rate": "positive", "b1": "decay", "b2": "decay", "eps": "positive"}
    ),
    "LBFGS": Row(
        LBFGS,
        {
            "maxstep": "limit",
            "memory": "one number",
            "damping": "positive",
            "alpha": "positive",
            "is_scaled": "switch",
            "curvature": "finite",
            "is_bounded": "switch",
        },
    ),
    "LevenbergMarquardt": Row(LevenbergMarquardt, {"tau": "positive"}),
    "LBFGS.ase": Row(LBFGS.ase, {"maxstep": "limit", "alpha": "positive"}),
    "BFGS": Row(BFGS, {"maxstep": "limit", "alpha": "positive", "max_rows": "one number"}),
    "BFGSLineSearch": Row(
        BFGSLineSearch, {"alpha": "positive", "search": "search", "max_rows": "one number"}
    ),
    "LBFGSLineSearch": Row(
        LBFGSLineSearch, {"alpha": "positive", "search": "search", "memory": "one number"}
    ),
    "ConjugateGradient": Row(ConjugateGradient, {"alpha": "positive", "search": "search"}),
    "GradientDescent": Row(
        GradientDescent, {"learning_rate": "positive", "barzilai_borwein": "switch"}
    ),
    "Armijo": Row(Armijo, SEARCHES | {"a_max": "limit", "a_min": "size"}),
    "MoreThuente": Row(
        MoreThuente,
        SEARCHES | {"c2": "part", "stpmax": "limit", "stpmin": "size", "xtol": "size"},
        {"c1": 0.2, "c2": 0.5},
    ),
    "ClipByGlobalNorm": Row(
        ClipByGlobalNorm,
        {
            "max_norm": "clip",
            "ord": "order",
            "nan_safe": "switch",
            "rescale_to_unit_norm": "switch",
            "return_zero": "switch",
        },
        {"max_norm": 1.0},
    ),
    "ClipByLayerNorm": Row(
        ClipByLayerNorm, {"max_norm": "clip", "uniform": "switch"}, {"max_norm": 1.0}
    ),
    "ClipByRowNorm": Row(ClipByRowNorm, {"max_norm": "clip"}),
    "ClipByValue": Row(ClipByValue, {"max_value": "clip"}),
    "MaxStepSize": Row(MaxStepSize, {"max_step_size": "clip"}),
    "MaxForce": Row(MaxForce, {"fmax": "tolerance"}),
    "RMSForce": Row(RMSForce, {"tolerance": "tolerance"}),
    "ForceNorm": Row(ForceNorm, {"tolerance": "tolerance"}),
    "EnergyChange": Row(
        EnergyChange, {"tolerance": "tolerance", "per_row": "switch"}, {"tolerance": 0.1}
    ),
    "MaxDisplacement": Row(MaxDisplacement, {"tolerance": "tolerance"}),
    "SystemIndex.from_sizes": Row(
        lambda **s: SystemIndex.from_sizes(**{"sizes": [2, 1]} | s),
        {"align": "one size", "n_rows": "one size"},
    ),
    "SystemIndex.from_ids": Row(
        lambda **s: SystemIndex.from_ids([0, 1], **s), {"n_systems": "one size"}
    ),
}
REFUSALS = {
    # What only raises here: what is sensible would run.
    "relax": Row(run, RELAX),
    "clip_by_norm": Row(
        lambda **s: clip_by_norm(X, **{"max_norm": 1.0} | s),
        {
            "max_norm": "clip",
            "ord": "order",
            "nan_safe": "switch",
            "rescale_to_unit_norm": "switch",
            "return_zero": "switch",
        },
    ),
    "clip_by_layer_norm": Row(
        lambda **s: clip_by_layer_norm(X, **{"max_norm": 1.0} | s),
        {"max_norm": "clip", "uniform": "switch"},
    ),
    "segment.norm": Row(lambda **s: segment.norm(X, **s), {"ord": "order"}),
}
KINDS["one size"] = Kind([*NO_NUMBERS[1:], 2.5, np.nan, np.inf, -1, 2**31, HUGE], [8, np.int64(8)])

CASES = [(setting, of) for of, row in (TABLE | REFUSALS).items() for setting in row.kinds]


def refusal(row: Row, setting: str, value: Any) -> str:
    """What is said, on one line that a screen holds."""
    with pytest.raises((TypeError, ValueError)) as error:
        row.make(**{**row.others, setting: value})
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 300
    return text


@pytest.mark.parametrize(("setting", "of"), CASES, ids=str)
def test_settings_without_sense_are_refused_by_name(setting, of):
    row = (TABLE | REFUSALS)[of]
    kind = KINDS[row.kinds[setting]]
    texts = [refusal(row, setting, value) for value in kind.senseless]
    assert [text for text in texts if setting not in text] == []


@pytest.mark.parametrize("of", TABLE)
def test_sensible_settings_are_taken(of):
    row = TABLE[of]
    for setting, kind in row.kinds.items():
        for value in KINDS[kind].sensible:
            assert row.make(**{**row.others, setting: value}) is not None


def public_transforms_and_searches() -> set[str]:
    kinds = (basinax.AbstractTransform, basinax.AbstractCriterion, Armijo, MoreThuente)
    given = {"Chain", "OptaxByName", "AbstractTransform", "AbstractLimit", "AbstractCriterion"}
    names = {
        name
        for name, value in vars(basinax).items()
        if isinstance(value, type) and issubclass(value, kinds) and not name.startswith("_")
    }
    return names - given - {"AllOf", "AnyOf"}


@pytest.mark.parametrize("of", sorted(public_transforms_and_searches()))
def test_a_list_of_numbers_is_an_array_of_one_number_a_system(of):
    """In a tree of settings its entries would be numbers by themselves, each for all systems."""
    row, fields = TABLE[of], getattr(basinax, of).__dataclass_fields__
    for name, kind in row.kinds.items():
        numbers = [x for x in KINDS[kind].sensible if isinstance(x, int | float)]
        if numbers and kind != "switch" and not fields[name].metadata.get("static"):
            made = row.make(**{**row.others, name: [numbers[0]] * 2})
            assert isinstance(getattr(made, name), np.ndarray), name


@pytest.mark.parametrize("whole", [2, [1, 2], np.array([1, 2]), jnp.array([1, 2]), np.int64(2)])
def test_whole_numbers_are_floats_where_real_numbers_are_allowed(whole):
    for setting in (FIRE(maxstep=whole).maxstep, MaxForce(whole).fmax):
        assert np.asarray(setting).dtype == np.float64
        assert np.array_equal(setting, np.asarray(whole))
    assert np.asarray(FIRE(Nmin=whole).Nmin).dtype.kind == "i"


def test_an_array_of_another_library_is_one_of_numpy():
    class Column:
        dtype = np.dtype(float)

        def __array__(self, dtype=None, copy=None):
            return np.array([0.1, 0.2], dtype)

    for made in (FIRE(dt=Column()).dt, MaxStepSize(Column()).max_step_size):
        assert isinstance(made, np.ndarray)
    with pytest.raises(ValueError, match=r"maxstep must be positive.* got -0.1 at entry 0"):
        FIRE(maxstep=type("Wrong", (Column,), {"__array__": lambda *_, **__: np.array([-0.1])})())


def test_every_class_with_settings_has_a_row():
    assert public_transforms_and_searches() - set(TABLE) == set()


def test_every_setting_stands_in_its_row():
    lacking = {
        name: set(getattr(basinax, name).__dataclass_fields__) - set(TABLE[name].kinds)
        for name in public_transforms_and_searches()
    }
    assert {name: settings for name, settings in lacking.items() if settings} == {}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MoreThuente(c1=0.5, c2=0.1), ["c1", "c2"]),
        (lambda: MoreThuente(stpmin=1.0, stpmax=0.5), ["stpmin", "stpmax"]),
        (lambda: Armijo(a_min=3.0), ["a_min", "a_max"]),
        (lambda: FIRE2(dtmin=np.array([0.1, 2.0])), ["dtmin", "dtmax"]),
    ],
)
def test_settings_that_contradict_each_other_are_refused(make, words):
    with pytest.raises(ValueError, match="must not be larger") as error:
        make()
    assert [word for word in words if word not in str(error.value)] == []


def test_groups_of_criteria_hold_criteria():
    for group in (AllOf, AnyOf):
        with pytest.raises(TypeError, match=r"expected criteria, got 0\.05"):
            group((MaxForce(), 0.05))


def test_what_is_traced_is_taken_as_it_is():
    @jax.jit
    def first_step(maxstep, nmin):
        return FIRE(maxstep=maxstep, dt=jnp.asarray([0.1]), Nmin=nmin).init(jnp.ones((2, 3))).dt

    assert first_step(-1.0, -1).tolist() == [0.1]
    with pytest.raises(TypeError, match="FIRE: maxstep must be a real number"):
        jax.jit(lambda x: FIRE(maxstep=x).init(X))(1j)


# --- what is larger than an integer of 32 bits, or than the memory


@pytest.mark.parametrize("wide", [2**31, 10**30, np.int64(2**40), np.array([2**31, 2**62])])
def test_more_steps_than_can_be_counted_are_no_limit(wide):
    counted = basinax.numerics.settings.counts(wide, "max_steps")
    assert counted.dtype == np.int32
    assert (counted == 2**31 - 1).all()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint64])
def test_counts_of_any_kind_of_integer_are_counts(dtype):
    counted = basinax.numerics.settings.counts(np.array([5, 0], dtype), "max_steps")
    assert counted.tolist() == [5, 0] and counted.dtype == np.int32


def test_more_traced_steps_than_can_be_counted_are_no_limit():
    count = jax.jit(lambda n: basinax.numerics.settings.counts(n, "max_steps"))
    counted = count(np.array([2**40, 3]))
    assert counted.tolist() == [2**31 - 1, 3]


LARGE = {
    "ids": lambda: SystemIndex.from_ids([0, 10**9]),
    "ids beyond 32 bits": lambda: SystemIndex.from_ids(np.array([0, 2**31])),
    "n_systems": lambda: SystemIndex.from_ids([0], 10**9),
    "sizes": lambda: SystemIndex.from_sizes([10**9]),
    "sizes that add up": lambda: SystemIndex.from_sizes([2**30] * 4),
    "sizes beyond 64 bits": lambda: SystemIndex.from_sizes(np.array([2**63], np.uint64)),
    "rows": lambda: SystemIndex.from_sizes([2], n_rows=10**9),
    "aligned rows": lambda: SystemIndex.from_sizes([2], align=10**9),
    "pairs of L-BFGS": lambda: LBFGS(memory=10**6, is_bounded=False).init(X),
    "a dense Hessian": lambda: BFGS().init(np.ones((10**5, 3))),
    "normal matrices": lambda: LevenbergMarquardt().init(np.ones((10**5, 3))),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_no_memory_holds_is_refused_before_it_is_allocated(name, monkeypatch):
    monkeypatch.setattr("basinax.numerics.memory._limits", lambda: (32 * 2**30,))
    with pytest.raises(ValueError, match=r"GiB of memory, and the machine has 32 GiB|at most 2147"):
        LARGE[name]()
