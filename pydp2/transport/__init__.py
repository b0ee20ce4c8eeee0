"""Frames from one process to another, without a meaning. The only part that knows ZeroMQ."""

from pydp2.transport.admission import NotNow, TurnedAway
from pydp2.transport.lasting import Lasting
from pydp2.transport.slabs import Late
from pydp2.transport.sockets import Gone, Hub, Line, Poll, buffers, views

__all__ = ["Gone", "Hub", "Lasting", "Late", "Line", "NotNow", "Poll", "TurnedAway", "buffers", "views"]
