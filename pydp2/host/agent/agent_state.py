"""Define the states of an agent and the transitions between them."""

from __future__ import annotations

from enum import Enum

from pydp2.protocol.state_table import next_state


class AgentState(Enum):
    """State of an agent."""

    RESTING = "resting"
    """It has no session; it waits until its old workers are gone and it is time to join again."""
    JOINING = "joining"
    WORKING = "working"
    LEAVING = "leaving"
    """It has asked to leave; its workers end their files."""
    ENDED = "ended"


class AgentEvent(Enum):
    """Event that changes the state of an agent."""

    CONNECT = "connect"
    ACCEPTED = "accepted"
    """The service sent its spec, and it is the one that this agent was started for."""
    SESSION_OVER = "session over"
    """The service is out of reach, or it has ended the session."""
    LEAVE = "leave"
    END = "end"


_S, _E = AgentState, AgentEvent

AGENT_TRANSITIONS: dict[tuple[AgentState, AgentEvent], AgentState] = {
    (_S.RESTING, _E.CONNECT): _S.JOINING,
    (_S.JOINING, _E.ACCEPTED): _S.WORKING,
    (_S.JOINING, _E.SESSION_OVER): _S.RESTING,
    (_S.WORKING, _E.SESSION_OVER): _S.RESTING,
    (_S.WORKING, _E.LEAVE): _S.LEAVING,
    **{(state, _E.END): _S.ENDED for state in _S},
}
"""State and event to the state after it."""


class AgentLife:
    """State of one agent."""

    def __init__(self) -> None:
        self.state: AgentState = AgentState.RESTING  # changed by move() alone

    def move(self, event: AgentEvent) -> None:
        """Change the state as ``event`` says. Raises IllegalTransition when the present state does not allow it."""
        self.state = next_state(AGENT_TRANSITIONS, self.state, event)
