"""Texts, configs and their files name what the package has, and nothing else is reached by them."""

import functools
import inspect
import json
import os
import re

import jax.numpy as jnp
import optax
import pytest

from basinax import FIRE, SystemIndex, chain, from_config, optax_transform, read_config, to_config
from basinax.config.specs import optimizer_from
from basinax.optimizers.optax_by_name import _makers

SHELL = "tree_utils.typing.contextlib.os.system"
"""A path to os.system through modules that optax's own modules import."""


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """The commands that a shell was given; none must be."""
    given = []
    monkeypatch.setattr(os, "system", given.append)
    yield given
    assert given == []


def by_name(function, **arguments):
    return {"name": "optax", "function": function, "arguments": arguments}


FUNCTIONS = [
    SHELL,
    "contrib.optax." + SHELL,
    "os.system",
    "_src.base.identity",
    "contrib._sam.sam",
    "adam.__globals__",
    "adam.__call__",
    "__getattr__",
    "__import__('os').system('touch x')",
    "GradientTransformation",
    "MultiSteps",
    "tree_utils",
    "contrib",
    "contrib.",
    ".adam",
    "",
    "adam ",
    "l2_loss",
    "apply_updates",
    "inject_hyperparams",
    "constant_schedule",
    "schedules.constant_schedule",
    "contrib.schedule_free_eval_params",
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_config_calls_no_other_functions_than_those_that_make_transformations(name):
    with pytest.raises(ValueError, match="optax has no transformation"):
        from_config(by_name(name, command="touch x"))


@pytest.mark.parametrize("name", [5, None, True, ["adam"], {"name": "adam"}], ids=str)
def test_a_function_is_named_by_a_text(name):
    with pytest.raises(TypeError, match="the function must be named by a text"):
        from_config(by_name(name))


def test_what_a_config_may_call_is_of_optax_and_known_to_make_transformations():
    makers = _makers()
    assert {"adam", "nadam", "clip", "scale_by_factored_rms", "contrib.prodigy"} <= set(makers)
    for name, maker in makers.items():
        function = maker.func if isinstance(maker, functools.partial) else maker
        assert inspect.isfunction(function)
        assert function.__module__.startswith("optax.")
        assert "_" not in (name[0], name.rpartition(".")[2][0])
    assert optax.monitor is makers["monitor"]


ARGUMENTS = [
    {"name": "fire"},
    {"name": "optax", "function": SHELL, "arguments": {"command": "touch x"}},
    {"function": SHELL},
    [{"name": "optax", "function": "adam"}],
    {},
]


@pytest.mark.parametrize("value", ARGUMENTS, ids=str)
def test_an_argument_of_optax_is_no_table(value):
    with pytest.raises(TypeError, match="'learning_rate' of optax must be a number, text"):
        from_config(by_name("adam", learning_rate=value))


@pytest.mark.parametrize(
    ("name", "argument"),
    [("apply_if_finite", "inner"), ("with_extra_args_support", "tx"), ("masked", "inner")],
)
def test_a_text_in_place_of_a_function_is_none(name, argument):
    arguments = {argument: SHELL} | ({"mask": True} if name == "masked" else {})
    arguments |= {"max_consecutive_errors": 1} if name == "apply_if_finite" else {}
    with pytest.raises((TypeError, ValueError), match=f"optax.{name}"):
        from_config(by_name(name, **arguments))


NAMES = [
    "__import__",
    "os.system",
    SHELL,
    "fire.__init__",
    "FIRE",
    "",
    "register",
    5,
    None,
    ["fire"],
]


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_name_in_a_config_is_one_of_a_table(name):
    with pytest.raises(ValueError, match="unknown transform"):
        from_config({"name": name})
    with pytest.raises(ValueError, match="unknown search"):
        from_config({"name": "lbfgs-line-search", "search": {"name": name}})


TEXTS = [
    "__import__('os')",
    "os.system:command=touch",
    "fire:__class__=1",
    "fire:dt=__import__('os').system('x')",
    "fire:dt=os.system",
    "lbfgs-line-search:search=os.system",
    "chain",
    "optax:function=" + SHELL,
    "AbstractTransform",
    "fire:dt=1_0",
    "fire:dt=true",
    "lbfgs:memory=true",
    "gradient-descent:barzilai_borwein=os.system",
    "clip-by-value:max_value=1",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_names_optimizers_and_their_numbers(text):
    with pytest.raises((TypeError, ValueError)):
        optimizer_from(text)


# --- files


FILES = {
    "brackets.json": "[" * 100_000,
    "tables.json": '{"name":"chain","transforms":[' * 3000 + "]}" * 3000,
    "lists.json": '{"name":"fire","dt":' + "[" * 200 + "]" * 200 + "}",
    "brackets.toml": "a=" + "[" * 50_000,
    "tables.toml": "a=" + "{a=" * 50_000,
    "keys.toml": "a." * 200 + "a = 1",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_nests_without_end_is_refused(name, tmp_path):
    (tmp_path / name).write_text(FILES[name])
    with pytest.raises(ValueError, match="more than 100 deep in one another"):
        from_config(read_config(tmp_path / name))


def test_chains_may_nest_as_people_nest_them():
    transform = chain(FIRE())
    for _ in range(20):
        transform = chain(transform, FIRE())
    config = to_config(transform)
    assert to_config(from_config(json.loads(json.dumps(config)))) == config


def test_a_config_that_holds_itself_is_refused():
    config = {"name": "chain", "transforms": []}
    config["transforms"] += [config, config]
    with pytest.raises(ValueError, match="more than 100 deep"):
        from_config(config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"name":"fire","d\xe9":1}', "byte 17 is no UTF-8"),
        (b"{", "Expecting"),
        (b"", "Expecting"),
    ],
    ids=str,
)
def test_a_file_that_is_no_config_is_named(content, message, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: .*{message}"):
        read_config(path)


def test_a_file_may_begin_with_the_mark_of_utf8(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"name": "fire", "dt": 0.05}', encoding="utf-8-sig")
    assert from_config(read_config(path)) == FIRE(dt=0.05)


def test_what_is_no_plain_file_is_not_read(tmp_path):
    """A device and a pipe have no end, and a pipe without a writer has no beginning."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "device.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    for name, kind in {"pipe": "named pipe", "device": "device", "folder": "folder"}.items():
        with pytest.raises(OSError, match=f"is a {kind}, not a file"):
            read_config(tmp_path / f"{name}.json")
    with pytest.raises(FileNotFoundError):
        read_config("~nobody-of-this-name/a.json")
    with pytest.raises(FileNotFoundError, match="no file can have this name"):
        read_config("a\0.json")


def test_a_version_is_an_integer():
    with pytest.raises(ValueError, match="the config has version True"):
        from_config({"name": "fire", "version": True})


def test_arguments_that_configs_have_are_kept():
    config = to_config(optax_transform("adam", learning_rate=0.1, b1=0.8, nesterov=True))
    assert to_config(from_config(config)) == config
    infinite = by_name("clip", max_delta="inf")
    assert to_config(from_config(infinite))["arguments"] == {"max_delta": float("inf")}


def test_an_optax_transformation_is_refused_without_a_state():
    optimizer = from_config(by_name("scale_by_lbfgs", memory_size=10**9))
    with pytest.raises(ValueError, match="scale_by_lbfgs mixes systems"):
        optimizer.init(jnp.ones((2, 3)), SystemIndex.from_sizes([1, 1]))


@pytest.mark.parametrize(("name", "field"), [("lbfgs", "memory"), ("bfgs", "max_rows")])
def test_a_list_in_place_of_a_count_is_named(name, field):
    """Without a warning of equinox about arrays that are static."""
    with pytest.raises((TypeError, ValueError), match=field):
        from_config({"name": name, field: [1, 2]}).init(jnp.ones((2, 3)), SystemIndex([0, 1], 2))
