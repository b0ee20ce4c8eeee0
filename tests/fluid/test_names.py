"""The public names: all there, and each says what it is."""

from __future__ import annotations

import inspect

import pydp2.fluid as fluid


def test_all_names_every_public_name_once_and_in_order() -> None:
    assert fluid.__all__ == sorted(set(fluid.__all__))
    assert [name for name in fluid.__all__ if not hasattr(fluid, name)] == []


def test_every_name_and_its_methods_have_a_docstring() -> None:
    missing = []
    for name in fluid.__all__:
        value = getattr(fluid, name)
        missing += [] if (value.__doc__ or "").strip() else [name]
        for attribute, member in vars(value).items() if inspect.isclass(value) else ():
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function) and not attribute.startswith("_") and not (function.__doc__ or "").strip():
                missing.append(f"{name}.{attribute}")
    assert missing == []
