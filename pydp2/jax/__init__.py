"""Load batches as jax arrays, on one device or on a mesh of many, and register batches as pytrees (docs/jax.md).

Needs the extra ``jax``.
"""

try:
    import jax as _jax
except ImportError as exc:
    raise ImportError("pydp2.jax needs jax, which is not installed: pip install 'jax>=0.10'") from exc

from pydp2.jax.arrays import Padded, SparseRows
from pydp2.jax.loading import JaxLoader, loader
from pydp2.jax.trees import register as _register

del _jax
_register()

__all__ = ["JaxLoader", "Padded", "SparseRows", "loader"]
