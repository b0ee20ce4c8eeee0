"""Define what the parts say to each other: messages, their wire form, the legal moves. No IO."""
