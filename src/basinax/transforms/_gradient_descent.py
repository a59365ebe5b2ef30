"""Steepest descent with a fixed rate."""

from jaxtyping import Array, Float

from basinax import _segment as segment
from basinax._optimizer import AbstractState, AbstractTransform, Prefix
from basinax._rounding import rounded
from basinax._systems import per_system


class GradientDescent(AbstractTransform):
    """The step is the negative gradient times a learning rate; the gradient of a plain descent."""

    learning_rate: float | Float[Array, "..."] = 0.01
    """Step per gradient (Å²/eV for atoms): a number, or one a system. TorchSim's default."""

    def init(self, parameters, index_prefix: Prefix = None) -> "GradientDescentState":
        return GradientDescentState(index_prefix)

    def update(self, updates, state: "GradientDescentState", params=None, **extra):
        rates = per_system(
            self.learning_rate, "learning_rate", segment.blank(updates, state.index_prefix)
        )
        return segment.map_rows(_descend, state.index_prefix, [(rates, 0.0)], updates), state


def _descend(rate, gradient):
    return -rounded(gradient * rate.astype(gradient.dtype))


class GradientDescentState(AbstractState):
    index_prefix: Prefix
