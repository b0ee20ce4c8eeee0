"""Feed training in torch: a loader and a dataset whose batches are tensors. See docs/torch.md."""

try:
    import torch as _torch  # noqa: F401 - the package of that name, not this one
except ImportError as exc:
    raise ImportError(f"pydp2.torch needs torch, which cannot be imported ({exc}): pip install 'torch>=2.4'") from exc

from pydp2.torch.tensor_dataset import Dataset as Dataset
from pydp2.torch.tensor_dataset import dataset as dataset
from pydp2.torch.tensor_loader import Loader as Loader
from pydp2.torch.tensor_loader import loader as loader
from pydp2.torch.tensors import PaddedTensor as PaddedTensor
from pydp2.torch.tensors import RaggedTensor as RaggedTensor
from pydp2.torch.tensors import to_tensors as to_tensors

__all__ = ["Dataset", "Loader", "PaddedTensor", "RaggedTensor", "dataset", "loader", "to_tensors"]
