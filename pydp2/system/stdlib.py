"""Keep modules of the standard library as they were before any code of the user ran.

A library may replace functions of these modules: one that freezes the clock, sends sockets through a proxy, or puts
greenlets in the place of threads. The code of pydp2 that runs beside the user's, in workers and trainers, takes the
modules from here: ``from pydp2.system.stdlib import os, time``. A copy is no module, so libraries that look through all
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
