"""The sign of a matrix: against LAPACK, and with bits that no other system decides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from basinax.optimizers.quasi_newton.matrix_sign import sign_product
from cases import DTYPES, same_bits
from xla import jit_as_users

WIDTH = 24
SIZES = [24, 7, 1, 8, 24, 13, 24, 24, 0]

sign = jit_as_users(sign_product)


def spectra() -> list[np.ndarray]:
    """Eigenvalues of systems of SIZES: of every kind that needs care."""
    draw = np.random.default_rng(0)
    sizes = [10.0 ** draw.uniform(-3, 1, size) for size in SIZES]
    signs = [draw.choice([-1, 1], size) for size in SIZES]
    spectra = [size * sign for size, sign in zip(sizes, signs, strict=True)]
    spectra[3] = np.abs(spectra[3])
    spectra[4] = np.repeat([-2.0, 3.0], [19, 5])
    spectra[6] = np.where(np.arange(24) < 20, 0.0, -1.0)
    spectra[7] = np.append(-1.0, np.ones(23))
    return spectra


def matrices(dtype):
    """One of each spectrum, with zeros where there are no entries, and vectors."""
    draw = np.random.default_rng(1)
    made = np.zeros((len(SIZES), WIDTH, WIDTH), dtype)
    vectors = np.zeros((len(SIZES), WIDTH), dtype)
    for k, (size, values) in enumerate(zip(SIZES, spectra(), strict=True)):
        q, _ = np.linalg.qr(draw.normal(size=(size, size)))
        # Of the last but one only a part is no multiple of 1: most of its columns need no turn.
        q = np.eye(size) + (q - np.eye(size)) * (k != 7)
        made[k, :size, :size] = (q * values) @ q.T
        vectors[k, :size] = draw.normal(size=size)
    made = (made + made.swapaxes(1, 2)) / 2
    return jnp.asarray(made), jnp.asarray(vectors), entries(SIZES, WIDTH)


def entries(sizes, width):
    return jnp.asarray(np.arange(width)[None, :] < np.array(sizes)[:, None])


EVERYONE = jnp.ones(len(SIZES), bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_absolute_eigenvalues_are_those_of_lapack(dtype):
    made, vectors, is_entry = matrices(dtype)
    signed = np.asarray(sign(made, vectors, is_entry, EVERYONE)[0], np.float64)
    made = np.asarray(made, np.float64)
    values, frames = np.linalg.eigh(made)
    inner = np.einsum("sij,si->sj", frames, np.asarray(vectors))
    expected = np.einsum("sij,sj->si", frames, np.abs(values) * inner)
    # Errors are some roundings of the largest eigenvalue; 7 and 22 of them were seen.
    largest = np.abs(values).max(axis=1, keepdims=True)
    off = np.einsum("sij,sj->si", made, signed) - expected
    assert np.abs(off / (largest * np.finfo(dtype).eps + 1e-300)).max() < 100


@pytest.mark.parametrize("dtype", DTYPES)
def test_those_without_negative_eigenvalues_are_told(dtype):
    _, is_definite = sign(*matrices(dtype), EVERYONE)
    assert [bool(x) for x in is_definite] == [bool((values > 0).all()) for values in spectra()]


@pytest.mark.parametrize(
    ("dtype", "alone"),
    [(np.float64, [(5, 16)]), (np.float32, [(1, 8), (2, 8), (3, 8), (8, 8)])],
    ids=["float64", "float32"],
)
def test_neither_others_nor_zeros_that_follow_change_a_bit(dtype, alone):
    made, vectors, is_entry = matrices(dtype)
    together = sign(made, vectors, is_entry, EVERYONE)
    for k, width in alone:
        part = slice(k, k + 1)
        got = sign(
            made[part, :width, :width],
            vectors[part, :width],
            is_entry[part, :width],
            EVERYONE[part],
        )
        expected = together[0][part, :width], together[1][part]
        assert same_bits(got, expected)


def test_bits_do_not_depend_on_which_others_are_looked_at():
    system = matrices(np.float32)
    together, _ = sign(*system, EVERYONE)
    mask = jnp.asarray(np.arange(len(SIZES)) % 3 == 1)
    some, _ = sign(*system, mask)
    assert same_bits(some, jnp.where(mask[:, None], together, 0))


def test_a_matrix_of_nan_or_inf_harms_no_other():
    made, vectors, is_entry = matrices(np.float64)
    together = sign(made, vectors, is_entry, EVERYONE)
    broken = made.at[0].set(jnp.nan).at[3, 1, 1].set(jnp.inf)
    after = sign(broken, vectors, is_entry, EVERYONE)
    others = np.array([1, 2, 4, 5, 6, 7, 8])
    assert same_bits([x[others] for x in after], [x[others] for x in together])
    assert not after[1][0]
    assert not after[1][3]


@pytest.mark.exhaustive  # every day the order of all operations in test_order_of_transforms.py
def test_jitted_and_one_operation_at_a_time_have_the_same_bits():
    made, vectors, is_entry = matrices(np.float32)
    part = made[1:2, :8, :8], vectors[1:2, :8], is_entry[1:2, :8], EVERYONE[1:2]
    with jax.disable_jit():
        expected = sign_product(*part)
    assert same_bits(sign(*part), expected)


def test_nothing_is_computed_of_a_matrix_that_is_not_looked_at():
    """For one system no turn of the loop changes the matrix, so XLA takes its work out of it."""
    one = [x[:1] for x in (*matrices(np.float64), EVERYONE)]
    program = sign.lower(*one).compile().as_text()
    loops = [line for line in program.splitlines() if " while(" in line and "op_name" in line]
    assert loops and all("sign_product)/cond/" in line for line in loops)
