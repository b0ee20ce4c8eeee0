"""Keep copies of modules of the standard library from before any code of the user runs.

A library may replace functions of these modules: one that freezes the clock, sends sockets through a proxy, or replaces
threads by greenlets. Code of pydp2 that runs in one process with the user's code, in workers and trainers, imports the
copies: ``from pydp2.system.stdlib import os, time``. A copy is not a module object, so libraries that search all
modules for the functions that they replace do not change it either.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

__all__ = [
    "_socket", "_thread", "fcntl", "gc", "hashlib", "mmap", "os", "signal", "socket", "struct", "threading", "time",
]  # fmt: skip

if TYPE_CHECKING:
    import _socket
    import _thread
    import fcntl
    import gc
    import hashlib
    import mmap
    import os
    import signal
    import socket
    import struct
    import threading
    import time
else:
    from importlib import import_module

    def _copy(module: ModuleType) -> Any:
        return SimpleNamespace(**vars(module))

    _socket, _thread, fcntl, gc, hashlib, mmap, os, signal, socket, struct, threading, time = (
        _copy(import_module(name)) for name in __all__
    )
