"""Transforms as configs: what is written is what is read, and what cannot be is said."""

import inspect
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from basinax import (
    BFGS,
    FIRE,
    FIRE2,
    LBFGS,
    AbstractTransform,
    Adam,
    Armijo,
    BFGSLineSearch,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRowNorm,
    ClipByValue,
    ConjugateGradient,
    GradientDescent,
    LBFGSLineSearch,
    LevenbergMarquardt,
    MaxStepSize,
    MDMin,
    MoreThuente,
    SystemIndex,
    chain,
    from_config,
    optax_transform,
    optimizers,
    read_config,
    register,
    to_config,
    write_config,
)
from cover import one_in

TRANSFORMS = [
    FIRE(),
    FIRE(dt=jnp.asarray([0.1, 0.2]), Nmin=np.array([3, 4])),
    GradientDescent(np.float32(0.1)),
    ClipByGlobalNorm(1.0),
    ClipByGlobalNorm(np.array([1.0, np.inf]), ord="-inf", nan_safe=True),
    ClipByGlobalNorm(0.5, ord=1.5, rescale_to_unit_norm=True, return_zero=True),
    ClipByLayerNorm(jnp.asarray(2.0), uniform=False),
    ClipByRowNorm(np.inf),
    ClipByValue([0.1, 0.2]),
    MaxStepSize(),
    FIRE2(use_abc=True),
    MDMin(0.1),
    Adam(b1=np.array([0.8, 0.9])),
    LBFGS.ase(),
    BFGS(max_rows=2),
    GradientDescent(0.1, barzilai_borwein=True),
    LBFGSLineSearch(memory=7),
    BFGSLineSearch(search=Armijo(maxstep=np.array([0.1, 0.3]))),
    ConjugateGradient(),
    ConjugateGradient(search=MoreThuente(c2=0.3, max_trials=20)),
    chain(LBFGSLineSearch(search=Armijo()), MaxStepSize(0.1)),
    optax_transform("adam", learning_rate=0.01, b1=0.8, nesterov=True),
    chain(),
    chain(ClipByGlobalNorm(1.0), chain(FIRE(), optax_transform("scale", step_size=0.5))),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=map(str, range(len(TRANSFORMS))))
@pytest.mark.parametrize("suffix", ["python", "json", "toml"])
def test_a_transform_is_that_of_its_config(transform, suffix, tmp_path):
    config = read = to_config(transform)
    if suffix != "python":
        path = tmp_path / f"optimizer.{suffix}"
        write_config(config, path)
        read = read_config(path)
    again = from_config(read)
    assert type(again) is type(transform)
    assert to_config(again) == config


NUMBERED = [pytest.param(transform, id=str(k)) for k, transform in enumerate(TRANSFORMS)]


@pytest.mark.parametrize("transform", one_in(3, NUMBERED))
def test_a_transform_of_a_config_does_the_same(transform):
    again = from_config(to_config(transform))
    x = np.random.default_rng(0).normal(size=(4, 3))
    index = SystemIndex.from_sizes([2, 2])
    known = {"params": jnp.asarray(x), "energies": jnp.ones(2)}
    step = eqx.filter_jit(lambda transform, state: transform.update(x, state, **known)[0])
    expected, got = (step(each, each.init(x, index)) for each in (transform, again))
    assert np.array_equal(got, expected)


def test_no_transform_is_left_out_above():
    known = {x for x in vars(optimizers).values() if inspect.isclass(x)}
    known = {x for x in known if issubclass(x, AbstractTransform)}
    assert known - {type(transform) for transform in TRANSFORMS} == set()


def test_a_search_is_a_table_in_that_of_its_optimizer():
    config = to_config(ConjugateGradient(search=Armijo(maxstep=0.1)))
    assert config["search"]["name"] == "armijo"
    assert config["search"]["maxstep"] == 0.1
    short = {"name": "lbfgs-line-search", "search": {"name": "more-thuente", "c2": 0.3}}
    assert to_config(from_config(short)) == to_config(LBFGSLineSearch(search=MoreThuente(c2=0.3)))


def test_a_config_is_of_plain_values():
    config = to_config(chain(ClipByGlobalNorm(jnp.asarray([1.0, 2.0])), GradientDescent(0.1)))
    assert config["version"] == 1
    assert config["transforms"][0] == {
        "name": "clip-by-global-norm",
        "max_norm": [1.0, 2.0],
        "ord": 2.0,
        "nan_safe": False,
        "rescale_to_unit_norm": False,
        "return_zero": False,
    }
    assert json.loads(json.dumps(config)) == config


def test_every_transform_of_the_package_has_a_name():
    known = from_error(lambda: from_config({"name": "unheard of"}))
    classes = [x for x in vars(optimizers).values() if inspect.isclass(x)]
    for cls in classes:
        if issubclass(cls, AbstractTransform):
            assert cls.__name__.lower() in known.replace("-", ""), cls


def from_error(function):
    with pytest.raises(ValueError, match="known are: ") as caught:
        function()
    return str(caught.value)


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_every_character_of_a_text_comes_back(tmp_path, ending):
    text = "".join(map(chr, [*range(1, 0x120), 0x2028, 0x1F600]))
    write_config({text: text}, tmp_path / f"config.{ending}")
    assert read_config(tmp_path / f"config.{ending}") == {text: text}


def test_json_holds_what_it_has_no_numbers_for_as_text(tmp_path):
    path = tmp_path / "limit.json"
    write_config(to_config(ClipByGlobalNorm(np.array([np.inf, -np.inf, np.nan]))), path)
    written = json.loads(path.read_text(), parse_constant=lambda text: pytest.fail(text))
    assert written["max_norm"] == ["inf", "-inf", "nan"]
    limits = from_config(read_config(path)).max_norm
    assert np.array_equal(limits, [np.inf, -np.inf, np.nan], equal_nan=True)


def test_a_config_by_hand_needs_only_what_has_no_default(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "chain"\n[[transforms]]\nname = "clip-by-global-norm"\nmax_norm = 1\nord = inf\n'
        '[[transforms]]\nname = "fire"\n'
    )
    got = from_config(read_config(path))
    assert to_config(got) == to_config(chain(ClipByGlobalNorm(1, ord=np.inf), FIRE()))


class Halve(AbstractTransform):
    factor: float = 0.5
    inner: AbstractTransform | None = None

    def init(self, parameters, index_prefix=None):
        return ClipByGlobalNorm(1.0).init(parameters, index_prefix)

    def update(self, updates, state, params=None, **extra):
        return jax.tree.map(lambda x: self.factor * x, updates), state


def test_third_parties_can_register():
    with pytest.raises(TypeError, match=r"LevenbergMarquardt has no name in configs$"):
        to_config(LevenbergMarquardt())
    with pytest.raises(TypeError, match=r"Halve has no name in configs: decorate it"):
        to_config(Halve())
    assert register("test-halve")(Halve) is Halve
    config = to_config(chain(Halve(inner=FIRE())))
    assert config["transforms"][0]["inner"]["name"] == "fire"
    assert to_config(from_config(config)) == config
    assert "inner" not in to_config(Halve())  # TOML has no null
    register("test-halve")(Halve)


def test_a_cell_of_a_notebook_that_runs_again_registers_its_new_class():
    for width in (1.0, 2.0):

        @register("test-again")
        class Again(Halve):
            extra: float = width

    assert from_config({"name": "test-again", "version": 1}).extra == 2.0


def test_names_cannot_be_taken_twice():
    for name in ("fire", "chain", "optax"):
        with pytest.raises(ValueError, match=f"the name '{name}' is taken"):
            register(name)(Halve)

    class Named(Halve):
        name: str = "x"

    with pytest.raises(ValueError, match="Named has a field 'name'"):
        register("named")(Named)
    with pytest.raises(TypeError, match="expected a subclass of AbstractTransform"):
        register("number")(int)  # pyright: ignore


WRONG = [
    (
        {"name": "fira"},
        r"unknown transform 'fira', did you mean 'fire'\? Known are: .*chain, ",
    ),
    ({}, "unknown transform None"),
    (
        {"name": "fire", "dtt": 1},
        "'fire' has no option 'dtt', did you mean 'dt'\\? Known are: dt, maxstep",
    ),
    ({"name": "clip-by-value"}, "'clip-by-value' needs the option 'max_value'"),
    ({"name": "clip-by-value", "max_value": -1}, "max_value must not be negative, got -1"),
    ({"name": "clip-by-global-norm", "max_norm": 1, "ord": 0.5}, "ord must be a number of 1 or"),
    ({"name": "optax", "function": "adma"}, "optax has no transformation 'adma'"),
    ({"name": "armijo"}, "unknown transform 'armijo'"),
    ({"name": ["fire"]}, "unknown transform \\['fire'\\]"),
    (
        {"name": "lbfgs-line-search", "search": {"name": "armjo"}},
        "unknown search 'armjo', did you mean 'armijo'",
    ),
    (
        {"name": "bfgs-line-search", "search": {"name": "fire"}},
        "unknown search 'fire'; known are: armijo, more-thuente",
    ),
    (
        {"name": "bfgs-line-search", "search": {"name": "armijo", "c3": 1}},
        "'armijo' has no option 'c3'; known are: maxstep, c1",
    ),
    ({"name": "optax"}, "'optax' needs the option 'function'"),
    (
        {"name": "fire", "version": 2},
        "version 2; this basinax reads versions 1 to 1",
    ),
    ({"name": "fire", "version": "x"}, "the config has version 'x'"),
]


@pytest.mark.parametrize(("config", "message"), WRONG, ids=str)
def test_what_is_wrong_in_a_config_is_said(config, message):
    with pytest.raises(ValueError, match=message):
        from_config(config)


@pytest.mark.parametrize("config", [None, [], "fire", {"name": "chain", "transforms": ["fire"]}])
def test_what_is_no_config_is_refused(config):
    with pytest.raises(TypeError, match="a config must be a mapping with a name"):
        from_config(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"name": "chain", "transforms": {"name": "fire"}}, "transforms of a chain must be a list"),
        ({"name": "optax", "function": "adam", "arguments": [1]}, "must be a mapping by name"),
        ({"name": "bfgs-line-search", "search": "armijo"}, r"search must be MoreThuente\(...\) or"),
    ],
    ids=str,
)
def test_a_part_of_the_wrong_kind_is_named(config, message):
    with pytest.raises(TypeError, match=message):
        from_config(config)


class Odd(Halve):
    factor: Any = eqx.field(default=print, static=True)


@pytest.mark.parametrize(
    "make",
    [lambda: chain(optax.adam(0.1)), lambda: chain(FIRE(), chain(optax.scale(0.1)))],
    ids=["alone", "nested"],
)
def test_a_raw_optax_transformation_says_how_to_make_one_with_a_config(make):
    with pytest.raises(TypeError, match=r"make it with basinax.optax_transform"):
        to_config(make())


def test_static_lists_in_one_another_become_tuples_again():
    """A static field needs a hash."""
    lists = register("test-static-lists")(type("Lists", (Odd,), {}))
    made = from_config(to_config(lists(factor=((1, 2), (3, 4)))))
    assert made.factor == ((1, 2), (3, 4)) and hash(jax.tree.structure(made))


def test_a_field_that_is_no_plain_value_is_named():
    register("test-odd")(Odd)
    with pytest.raises(TypeError, match=r"Odd.factor is a builtin_function_or_method"):
        to_config(Odd())


def test_files_that_are_no_configs_are_named(tmp_path):
    files = [("a.json", "{"), ("b.toml", "x ="), ("c.json", "[]"), ("d.yaml", "")]
    for name, text in [*files, ("f.json", '{"a": {"x": 1, "x": 2}}')]:
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ValueError, match=name):
            read_config(path)
    with pytest.raises(ValueError, match="must end in"):
        write_config({}, tmp_path / "e.yaml")
    with pytest.raises(FileNotFoundError):
        read_config(tmp_path / "none.json")
    with pytest.raises(ValueError, match="TOML has no null"):
        write_config({"name": None}, tmp_path / "f.toml")
    assert not (tmp_path / "f.toml").exists()
