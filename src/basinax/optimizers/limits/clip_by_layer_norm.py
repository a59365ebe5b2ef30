"""Clipping of every leaf separately, to its share of one limit (`clip_by_layer_norm`)."""

import equinox as eqx
from jaxtyping import Array, Float

from basinax.optimizers.limits.protocol import AbstractLimit, LimitState
from basinax.systems.clip_factors import require_limit
from basinax.systems.clipping import LayerClipped, clip_by_layer_norm
from basinax.systems.types import Prefix


class ClipByLayerNorm(AbstractLimit):
    """Scale each leaf of each system down to its share of `max_norm`, if its norm is larger.

    The norm of the whole system is then at most `max_norm`. Leaves may be positions and a cell.
    """

    max_norm: float | Float[Array, "..."]
    """The limit of all leaves together: one number, or one per system."""
    uniform: bool = eqx.field(default=True, kw_only=True, static=True)
    """Equal shares; otherwise shares in the ratio of the roots of the numbers of entries."""

    def __check_init__(self):
        require_limit(self.max_norm, "max_norm")

    def limit(self, updates, index_prefix: Prefix = None) -> LayerClipped:
        return clip_by_layer_norm(updates, self.max_norm, index_prefix, uniform=self.uniform)


ClipByLayerNormState = LimitState
