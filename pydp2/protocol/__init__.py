"""Define the protocol between the processes: messages, their wire form, the link states. No IO."""
