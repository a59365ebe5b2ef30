"""Relax many independent systems in one batch, each with the bits it has alone."""

import typing

__version__ = "0.1.0"

_PACKAGES = ("atoms", "cli")
"""Subpackages: only their own import loads them."""

if typing.TYPE_CHECKING:
    from basinax._public import *  # noqa: F403
else:
    # Import JAX with the first public name only: the import takes longer than most commands.

    def __getattr__(name: str) -> typing.Any:
        if name == "__all__" or (not name.startswith("_") and name not in _PACKAGES):
            from types import ModuleType

            from basinax import _public

            modules = {k for k, x in vars(_public).items() if isinstance(x, ModuleType)}
            hidden = {k for k in vars(_public) if k.startswith("_")} | modules - {"segment"}
            public = {key: x for key, x in vars(_public).items() if key not in hidden}
            globals().update(public, __all__=sorted(public))
            if name in globals():
                return globals()[name]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__")})
