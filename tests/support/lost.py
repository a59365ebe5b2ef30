"""An optimizer that loses its systems."""

import jax.numpy as jnp

from basinax import AbstractState, AbstractTransform, segment, systems_field


class CountState(AbstractState):
    index_prefix: object
    count: object = systems_field()


class Lost(AbstractTransform):
    """Descends, and steps to NaN after so many steps."""

    after: object

    def init(self, parameters, index_prefix=None):
        count = jnp.zeros_like(segment.blank(parameters, index_prefix), jnp.int32)
        return CountState(index_prefix, count)

    def update(self, updates, state, params=None, **extra):
        factor = jnp.where(state.count >= self.after, jnp.nan, -0.1)
        steps = segment.scale(updates, factor.astype(updates.dtype), state.index_prefix)
        return steps, CountState(state.index_prefix, state.count + 1)
