"""``python -m pydp2``: the same as ``pydp2``."""

from __future__ import annotations

import sys


def _main() -> None:
    from pydp2_cli import main

    main(prog_name="pydp2" if sys.argv[0].endswith("__main__.py") else None)


if __name__ == "__main__":
    _main()
