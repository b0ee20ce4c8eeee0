"""Provide helpers around the interpreter and the system: folders, logs, threads that read ahead, memory."""
