"""socialx: traffic forecasting with one shared xLSTM encoder and learned social pooling.

For a notebook: ``socialx.load_settings``, ``socialx.open_store``, ``socialx.build``, ``socialx.fit``,
``socialx.evaluate``.  They are imported when they are first named, so that ``import socialx`` stays quick.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "load_settings": ("socialx.options", "load"),
    "open_store": ("socialx.data.store", "open_store"),
    "build": ("socialx.build", None),
    "fit": ("socialx.training.engine", "fit"),
    "evaluate": ("socialx.training.engine", "evaluate"),
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'socialx' has no attribute {name!r}")
    module, attribute = _PUBLIC[name]
    found = import_module(module)
    return found if attribute is None else getattr(found, attribute)
