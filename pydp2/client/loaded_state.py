"""Keep which state a client has loaded: until the service has gone there, and a little longer, because another rank may
load the same one (docs/order.md, "Ranks")."""

from __future__ import annotations

MAX_REJOIN_BATCHES = 16
"""Number of batches since it loaded a state with which a client of a rank still goes on by itself."""


class LoadedState:
    """Loaded state of a client, which begins a run with ``name`` until the service answers. ``dynamic``: what it has
    had since then may go to other clients."""

    def __init__(self, *, dynamic: bool = False) -> None:
        self._rejoin_batches = 0 if dynamic else MAX_REJOIN_BATCHES
        self.name = ""
        """Name of the state that the next run asks for; empty: none."""
        self.is_repeat = False
        """True if a run has asked for it before."""
        self.after_pass = False
        """True if other ranks end their pass before the service goes there."""
        self.is_lacking = False
        """True if the service went to a state, and this client was told to load it, too."""
        self.was_answered = False
        """True once the service has answered a run."""
        self._origin = ""  # the one that this client loaded last, if it may go back to it
        self._batches = 0  # had since then
        self._goes_back = False  # the next run begins because of rejoin()

    def load(self, name: str, *, after_pass: bool = False) -> None:
        """Note that the state ``name`` was loaded."""
        self.name, self.is_repeat, self.after_pass = name, False, after_pass
        self._origin, self._batches, self._goes_back = name, 0, False
        self.is_lacking = False

    def note_asked(self) -> None:
        """Note that a run asks for it, or is about to."""
        self.is_repeat = bool(self.name)
        if self._goes_back:
            self._origin = ""  # once

    def note_answered(self) -> None:
        """Note that the service has answered that run."""
        self.name, self.is_repeat, self.was_answered = "", False, True

    def note_pass_end(self) -> None:
        """Note that a pass is over: others may be given what it had of it."""
        if self._rejoin_batches == 0:
            self._origin = ""

    def note_batch(self) -> None:
        """Note that a batch was delivered."""
        self._batches += 1
        self.is_lacking = False

    def rejoin(self, name: str) -> bool:
        """Return True if the client goes on, once, with a service that went back to the state ``name``: it is the one
        that it loaded itself, not many batches ago. Until a run asks for it the answer stays the same, because an
        exception may come between."""
        if not name or name != self._origin or self._batches > self._rejoin_batches:
            return False
        self.name, self.is_repeat, self._goes_back = name, True, True
        return True
